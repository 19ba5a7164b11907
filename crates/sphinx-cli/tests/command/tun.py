"""What the tests of tunnels for IP packets need and not every machine has: ping, and a server that takes and gives files.

usage: tun.py ping ADDRESS COUNT | serve PORT
"""

import http.server
import os
import socket
import struct
import sys
import time


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def ping(address, count):
    """As many answers as questions, or it fails."""
    is_v6 = ":" in address
    family, protocol = (socket.AF_INET6, 58) if is_v6 else (socket.AF_INET, 1)
    ask, answer = (128, 129) if is_v6 else (8, 0)
    icmp = socket.socket(family, socket.SOCK_RAW, protocol)
    icmp.settimeout(0.2)
    own, got = os.getpid() & 0xFFFF, set()
    end = time.monotonic() + 30
    while len(got) < count and time.monotonic() < end:
        head = struct.pack("!BBHHH", ask, 0, 0, own, len(got))
        # The kernel completes that of ICMPv6.
        head = head[:2] + struct.pack("!H", checksum(head)) + head[4:]
        icmp.sendto(head, (address, 0))
        try:
            packet = icmp.recv(2000)
        except TimeoutError:
            continue
        packet = packet if is_v6 else packet[(packet[0] & 15) * 4:]
        kind, _, _, of, number = struct.unpack("!BBHHH", packet[:8])
        if (kind, of) == (answer, own):
            got.add(number)
    return 0 if len(got) == count else 1


class Files(http.server.SimpleHTTPRequestHandler):
    def do_PUT(self):
        with open("put", "wb") as file:
            file.write(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


if sys.argv[1] == "ping":
    sys.exit(ping(sys.argv[2], int(sys.argv[3])))
Server(("::", int(sys.argv[2])), Files).serve_forever() if sys.argv[1] == "serve" else sys.exit(2)
