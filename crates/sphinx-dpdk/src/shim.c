/* What of DPDK is inline in its headers, a burst at a time, and what has structures that are not to cross the border: only
 * pointers and numbers do. Nothing here keeps state. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_udp.h>

/* Checksums that the card sees to. */
enum {
	SPHX_IPV4 = 1,
	SPHX_UDP = 2,
};

struct sphx_port {
	uint16_t mtu;
	uint8_t mac[6];
	char driver[32];
	/* Of what is sent, and of what is received. */
	uint8_t tx_sums;
	uint8_t rx_sums;
	/* That the driver can have, each way. */
	uint16_t queues;
};

/* The number of an error, not negative; 0 if there is none. */
static int failed(int result)
{
	return result < 0 ? -result : 0;
}

/* What it prints goes to standard error: standard output is the program's, for events or data. */
int sphx_eal_init(int argc, char **argv)
{
	int saved, result;

	fflush(stdout);
	saved = dup(STDOUT_FILENO);
	if (saved >= 0)
		(void)dup2(STDERR_FILENO, STDOUT_FILENO);
	result = rte_eal_init(argc, argv) < 0 ? (rte_errno ? rte_errno : EINVAL) : 0;
	fflush(stdout);
	if (saved >= 0) {
		(void)dup2(saved, STDOUT_FILENO);
		(void)close(saved);
	}
	return result;
}

int sphx_first_port(uint16_t *port)
{
	uint16_t id;

	RTE_ETH_FOREACH_DEV(id) {
		*port = id;
		return 0;
	}
	return ENODEV;
}

/* Starts a port with so many queues each way, packets of at most `mtu` bytes (0: what the driver has), and memory for so many of them. */
int sphx_port_open(uint16_t port, uint16_t queues, uint16_t descriptors, uint32_t mbufs, uint16_t mtu, struct rte_mempool **pool, struct sphx_port *told)
{
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf;
	struct rte_ether_addr mac;
	uint16_t rx = descriptors, tx = descriptors;
	uint32_t room;
	char name[RTE_MEMPOOL_NAMESIZE];
	int result;

	memset(&conf, 0, sizeof(conf));
	result = rte_eth_dev_info_get(port, &info);
	if (result < 0)
		return failed(result);
	memset(told->driver, 0, sizeof(told->driver));
	if (info.driver_name != NULL)
		strncpy(told->driver, info.driver_name, sizeof(told->driver) - 1);
	told->queues = RTE_MIN(info.max_rx_queues, info.max_tx_queues);
	if (told->queues < queues)
		return ENOSPC;
	if (mtu == 0) {
		result = rte_eth_dev_get_mtu(port, &mtu);
		if (result < 0)
			return failed(result);
	}
	room = RTE_PKTMBUF_HEADROOM + mtu + 64;
	if (room < RTE_MBUF_DEFAULT_BUF_SIZE)
		room = RTE_MBUF_DEFAULT_BUF_SIZE;
	if (room > UINT16_MAX)
		return E2BIG;
	conf.rxmode.mtu = mtu;
	conf.rxmode.offloads = info.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
	/* All packets are of one pool, and nobody shares them: they may be given back without a look at each. */
	conf.txmode.offloads = info.tx_offload_capa & (RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE);
	if (queues > 1) {
		/* By addresses, and ports where the card can; without either all that arrives does so at the first queue. */
		conf.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads & (RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_IPV6 | RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP);
		if (conf.rx_adv_conf.rss_conf.rss_hf != 0)
			conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
	}
	result = rte_eth_dev_configure(port, queues, queues, &conf);
	if (result < 0)
		return failed(result);
	result = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
	if (result < 0)
		return failed(result);
	/* That of a port which was given back stays, as somebody may still have packets of it. */
	(void)snprintf(name, sizeof(name), "sphinx %" PRIu32 " %" PRIu32, mbufs, room);
	*pool = rte_mempool_lookup(name);
	if (*pool == NULL)
		*pool = rte_pktmbuf_pool_create(name, mbufs, 256, 0, room, rte_eth_dev_socket_id(port) < 0 ? SOCKET_ID_ANY : rte_eth_dev_socket_id(port));
	if (*pool == NULL)
		return rte_errno ? rte_errno : ENOMEM;
	for (uint16_t queue = 0; queue < queues; queue++) {
		result = rte_eth_rx_queue_setup(port, queue, rx, rte_eth_dev_socket_id(port), NULL, *pool);
		if (result < 0)
			return failed(result);
		result = rte_eth_tx_queue_setup(port, queue, tx, rte_eth_dev_socket_id(port), NULL);
		if (result < 0)
			return failed(result);
	}
	result = rte_eth_dev_start(port);
	if (result < 0)
		return failed(result);
	/* Questions for our IPv6 addresses go to groups. Not every driver knows how, or has to be told. */
	(void)rte_eth_allmulticast_enable(port);
	result = rte_eth_macaddr_get(port, &mac);
	if (result < 0)
		return failed(result);
	told->mtu = mtu;
	memcpy(told->mac, mac.addr_bytes, sizeof(told->mac));
	told->tx_sums = (conf.txmode.offloads & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM ? SPHX_IPV4 : 0)
		| (conf.txmode.offloads & RTE_ETH_TX_OFFLOAD_UDP_CKSUM ? SPHX_UDP : 0);
	told->rx_sums = (conf.rxmode.offloads & RTE_ETH_RX_OFFLOAD_IPV4_CKSUM ? SPHX_IPV4 : 0)
		| (conf.rxmode.offloads & RTE_ETH_RX_OFFLOAD_UDP_CKSUM ? SPHX_UDP : 0);
	return 0;
}

/* Gives the card back. What is written to `device` finds it again; it is empty if that is not possible. */
void sphx_port_close(uint16_t port, char *device, uint16_t room)
{
	struct rte_eth_dev_info info;
	const struct rte_devargs *args;
	int length;

	device[0] = 0;
	if (rte_eth_dev_info_get(port, &info) < 0)
		info.device = NULL;
	if (info.device != NULL) {
		args = rte_dev_devargs(info.device);
		length = snprintf(device, room, "%s,%s", rte_dev_name(info.device), args != NULL && args->args != NULL ? args->args : "");
		if (length < 0 || length >= room)
			device[0] = 0;
	}
	(void)rte_eth_dev_stop(port);
	(void)rte_eth_dev_close(port);
	/* One that is closed only is neither to be had nor to be found. */
	if (info.device != NULL)
		(void)rte_dev_remove(info.device);
}

/* Finds a card again that was given back. */
int sphx_port_again(const char *device)
{
	return failed(rte_dev_probe(device));
}

/* The calling thread gets a share of the pools' caches. Without one packets cost more. */
void sphx_thread_register(void)
{
	(void)rte_thread_register();
}

void sphx_thread_unregister(void)
{
	rte_thread_unregister();
}

/* At most `most` packets, with where they are, how long, and which checksums the card has found right. What is in several pieces is put into one, or dropped. */
uint16_t sphx_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint8_t **data, uint32_t *lengths, uint8_t *sums, uint16_t most)
{
	uint16_t received = rte_eth_rx_burst(port, queue, packets, most);
	uint16_t kept = 0;

	for (uint16_t i = 0; i < received; i++) {
		struct rte_mbuf *packet = packets[i];

		if (rte_pktmbuf_linearize(packet) < 0) {
			rte_pktmbuf_free(packet);
			continue;
		}
		packets[kept] = packet;
		data[kept] = rte_pktmbuf_mtod(packet, uint8_t *);
		lengths[kept] = rte_pktmbuf_data_len(packet);
		sums[kept] = ((packet->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK) == RTE_MBUF_F_RX_IP_CKSUM_GOOD ? SPHX_IPV4 : 0)
			| ((packet->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_GOOD ? SPHX_UDP : 0);
		kept++;
	}
	return kept;
}

/* A packet of so many bytes to be written, or NULL: a datagram behind `ip` bytes of IP header, of which the card is to compute `sums`, or with neither something else. */
struct rte_mbuf *sphx_alloc(struct rte_mempool *pool, uint16_t length, uint8_t ip, uint8_t sums, uint8_t **data)
{
	struct rte_mbuf *packet = rte_pktmbuf_alloc(pool);

	if (packet == NULL)
		return NULL;
	*data = (uint8_t *)rte_pktmbuf_append(packet, length);
	if (*data == NULL) {
		rte_pktmbuf_free(packet);
		return NULL;
	}
	if (sums != 0) {
		int is_v4 = ip == sizeof(struct rte_ipv4_hdr);

		packet->l2_len = RTE_ETHER_HDR_LEN;
		packet->l3_len = ip;
		packet->l4_len = sizeof(struct rte_udp_hdr);
		packet->ol_flags |= is_v4 ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6;
		if (is_v4 && (sums & SPHX_IPV4))
			packet->ol_flags |= RTE_MBUF_F_TX_IP_CKSUM;
		if (sums & SPHX_UDP)
			packet->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM;
	}
	return packet;
}

/* How many of the packets are the driver's now. With checksums that the card is to compute it may have to see them first. */
uint16_t sphx_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count, uint8_t sums)
{
	if (sums != 0 && count > 0) {
		uint16_t prepared = rte_eth_tx_prepare(port, queue, packets, count);

		/* One that it refuses is lost, as on the way: it is not to hold up the others. */
		if (prepared == 0) {
			rte_pktmbuf_free(packets[0]);
			return 1;
		}
		count = prepared;
	}
	return rte_eth_tx_burst(port, queue, packets, count);
}

void sphx_free(struct rte_mbuf **packets, uint16_t count)
{
	for (uint16_t i = 0; i < count; i++)
		rte_pktmbuf_free(packets[i]);
}
