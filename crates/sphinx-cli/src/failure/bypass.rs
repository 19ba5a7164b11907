//! What to do where an interface cannot be used past the kernel.

use std::error::Error;

#[cfg(feature = "dpdk")]
use sphinx_transport::DpdkError;
use sphinx_transport::XdpError;

/// The line that helps, if an interface is what has failed.
pub(crate) fn hint(source: &(dyn Error + 'static)) -> Option<String> {
    #[cfg(feature = "dpdk")]
    if let Some(error) = source.downcast_ref() {
        return Some(hint_dpdk(error).to_owned());
    }
    source.downcast_ref().map(hint_xdp)
}

#[cfg(feature = "dpdk")]
fn hint_dpdk(error: &DpdkError) -> &'static str {
    match error {
        DpdkError::Address(_) => "--listen takes one of them, or only a port: --listen :4433",
        DpdkError::Busy => "one endpoint in a process can have it",
        DpdkError::Eal(_) => {
            "it needs root and hugepages: `echo 512 > /proc/sys/vm/nr_hugepages`, or --no-huge among the EAL arguments"
        }
        DpdkError::NoPort => {
            "`dpdk-devbind.py --status` shows cards; one has to be bound to vfio-pci, or made with --vdev"
        }
        DpdkError::Queues { .. } => {
            "--shards N asks for as many; some virtual cards have as many as they are told: --vdev=net_af_packet0,iface=IF,qpairs=N"
        }
        DpdkError::Port(_) => "what its driver says is on standard error",
        _ => "docs/line-rate.md says what DPDK needs",
    }
}

fn hint_xdp(error: &XdpError) -> String {
    match error {
        XdpError::Busy { interface } => format!(
            "only one program fits: `ip -details link show dev {interface}` shows it, `ip link set dev {interface} xdp off` removes one that was left behind"
        ),
        XdpError::Denied { .. } => "run it as root, or once `sudo setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep $(command -v sphx)`".to_owned(),
        XdpError::Down { interface } => format!("`ip link set {interface} up` turns it on"),
        XdpError::LockedMemory { .. } => {
            "`ulimit -l unlimited` in this shell, or the capability cap_ipc_lock, lifts the limit".to_owned()
        }
        XdpError::NoInterface { .. } => "`ip link` shows the interfaces".to_owned(),
        XdpError::NoNative { interface, .. } => format!(
            "--io xdp:{interface},generic runs with any driver, at the cost of one more copy; `ethtool -i {interface}` names the driver"
        ),
        XdpError::FewQueues { interface, .. } => format!(
            "--shards N asks for as many; `ethtool -l {interface}` shows how many it has, and `ethtool -L {interface} combined N` may give it more"
        ),
        XdpError::NoQueue { interface, .. } => format!("`ethtool -l {interface}` shows how many it has"),
        XdpError::NoZeroCopy { interface, .. } => format!(
            "--io xdp:{interface},copy works without it; `ethtool -i {interface}` names the driver"
        ),
        XdpError::NotEthernet { .. } => "--io udp works with any interface".to_owned(),
        XdpError::QueueBusy { interface, .. } => format!(
            "end the program that has it, or choose another queue: --io xdp:{interface}:N"
        ),
        _ => "--io udp needs nothing of this; docs/line-rate.md says what AF_XDP needs".to_owned(),
    }
}
