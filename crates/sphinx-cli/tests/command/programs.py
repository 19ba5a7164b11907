"""What the tests of programs through tunnels need and not every machine has.

usage: programs.py dns PORT            answers every question with 192.0.2.7
       programs.py ask HOST PORT       asks such a server
       programs.py socks PORT PROXY TO datagrams at PORT go through the SOCKS5 proxy at port PROXY to port TO of the other end's loopback
       programs.py paced BYTES COUNT   so many pieces, one every 4 ms
       programs.py count PORT COUNT    numbers from 0 on, each in a datagram to PORT, one every millisecond; then -1 every 10 ms
       programs.py page PORT COUNT BYTES  a page that fetches so many objects of so many bytes each, and then tells how many bytes came: printed
       programs.py rising PORT COUNT   takes them: each has to be above the one before, and hardly any may be missing
"""

import http.server
import socket
import struct
import sys
import time

LOCAL = "127.0.0.1"
QUESTION = b"\1a\7example\0\0\1\0\1"


def bound(port):
    taker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taker.bind((LOCAL, port))
    return taker


def dns(port):
    taker = bound(port)
    while True:
        asked, of = taker.recvfrom(2000)
        end = asked.index(0, 12) + 5
        head = asked[:2] + struct.pack("!HHHHH", 0x8580, 1, 1, 0, 0)
        taker.sendto(head + asked[12:end] + struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + bytes([192, 0, 2, 7]), of)


def ask(host, port):
    asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asker.settimeout(0.5)
    for number in range(60):
        asker.sendto(struct.pack("!HHHHHH", number, 0x100, 1, 0, 0, 0) + QUESTION, (host, port))
        try:
            answer = asker.recv(2000)
        except OSError:
            continue
        return int(answer[-4:] != bytes([192, 0, 2, 7]))
    return 1


def socks(port, proxy, to):
    taker = bound(port)
    control = socket.create_connection((LOCAL, proxy))
    control.sendall(b"\5\1\0")
    assert control.recv(2, socket.MSG_WAITALL) == b"\5\0"
    control.sendall(b"\5\3\0\1" + bytes(6))
    answer = control.recv(10, socket.MSG_WAITALL)
    assert answer[:4] == b"\5\0\0\1"
    inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inner.connect((LOCAL, struct.unpack("!H", answer[8:])[0]))
    inner.settimeout(1)
    head = b"\0\0\0\1" + socket.inet_aton(LOCAL) + struct.pack("!H", to)
    while True:
        data, of = taker.recvfrom(2000)
        inner.send(head + data)
        try:
            taker.sendto(inner.recv(2000)[10:], of)
        except TimeoutError:
            pass


def count(port, count):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(count):
        sender.sendto(struct.pack("!i", number), (LOCAL, port))
        time.sleep(0.001)
    while True:
        sender.sendto(struct.pack("!i", -1), (LOCAL, port))
        time.sleep(0.01)


def rising(port, count):
    taker = bound(port)
    taken = []
    while True:
        number = struct.unpack("!i", taker.recv(100))[0]
        if number < 0:
            break
        taken.append(number)
    falls = [pair for pair in zip(taken, taken[1:]) if pair[0] >= pair[1]]
    print(f"{len(taken)} of {count}, {len(falls)} out of order", flush=True)
    return 0 if not falls and len(taken) >= 0.99 * count else 1


PAGE = """<!doctype html><title>page</title><script>
const objects = Array.from({ length: COUNT }, (_, number) => fetch(`object${number}`).then((object) => object.arrayBuffer()));
Promise.all(objects).then((all) => fetch(`seen${location.search}=${all.reduce((sum, one) => sum + one.byteLength, 0)}`));
</script>"""


def page(port, count, size):
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith("/seen?"):
                print(self.path.removeprefix("/seen?"), flush=True)
            is_page = self.path.startswith("/?")
            body = PAGE.replace("COUNT", str(count)).encode() if is_page else bytes(size)
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if is_page else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    http.server.ThreadingHTTPServer((LOCAL, port), Answers).serve_forever()


def paced(size, count):
    time.sleep(0.5)
    for number in range(count):
        sys.stdout.buffer.write(bytes([number % 256]) * size)
        sys.stdout.buffer.flush()
        time.sleep(0.004)
    time.sleep(1)


if __name__ == "__main__":
    known = {"dns": dns, "ask": ask, "socks": socks, "paced": paced, "count": count, "page": page, "rising": rising}
    words = [int(word) if word.isdigit() else word for word in sys.argv[2:]]
    sys.exit(known[sys.argv[1]](*words))
