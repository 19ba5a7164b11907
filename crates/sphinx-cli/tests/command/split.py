"""Both ends of connections of kernel TCP.

usage: split.py serve PORT                     has a connection say how much it wants, sends that while it takes what comes, and at the end of that the digest of it
       split.py take PORT FILE                 writes what one connection brings into FILE
       split.py both HOST PORT BYTES [COUNT [FILE]]   as many bytes each way, side by side, on COUNT connections at once: fails unless all are right; makes FILE
                                               when the first of them come
       split.py drop HOST PORT BYTES           sends so much, closes and ends at once
       split.py held HOST PORT FILE            makes FILE when it is connected, and tells how the connection ends
       split.py asked HOST PORT                tells what becomes of asking for a connection

What listens makes a file `listens-PORT`.
"""

import errno
import hashlib
import socket
import sys
import threading

PATIENCE = 60


def pattern(length, kind):
    block = hashlib.shake_128(kind).digest(1 << 16)
    return (block * (length // len(block) + 1))[:length]


def connected(host, port):
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def listening(port):
    listener = socket.create_server(("::", int(port)), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1000)
    open(f"listens-{port}", "w").close()
    return listener


def all_of(stream):
    pieces = []
    while piece := stream.recv(1 << 18):
        pieces.append(piece)
    return b"".join(pieces)


def serve_one(stream):
    wanted = int.from_bytes(stream.recv(8, socket.MSG_WAITALL), "big")
    sending = threading.Thread(target=stream.sendall, args=(pattern(wanted, b"down"),))
    sending.start()
    taken = all_of(stream)
    sending.join()
    stream.sendall(hashlib.sha256(taken).digest())
    stream.close()


def serve(port):
    listener = listening(port)
    while True:
        threading.Thread(target=serve_one, args=(listener.accept()[0],), daemon=True).start()


def take(port, file):
    with open(file, "wb") as out:
        out.write(all_of(listening(port).accept()[0]))


def both(host, port, length, count="1", file=None):
    length, wrong = int(length), []

    def one():
        try:
            stream = connected(host, port)

            def send():
                stream.sendall(length.to_bytes(8, "big") + pattern(length, b"up"))
                stream.shutdown(socket.SHUT_WR)

            sending = threading.Thread(target=send)
            sending.start()
            taken = stream.recv(1)
            if file:
                open(file, "w").close()
            taken += all_of(stream)
            sending.join()
            assert taken == pattern(length, b"down") + hashlib.sha256(pattern(length, b"up")).digest(), f"{len(taken)} bytes came"
        except Exception as error:
            wrong.append(f"{host}: {error!r}")

    threads = [threading.Thread(target=one) for _ in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(f"{len(wrong)} of {count}: {wrong[0]}" if wrong else 0)


def drop(host, port, length):
    stream = connected(host, port)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    stream.sendall(pattern(int(length), b"up"))


def told(action):
    try:
        return action()
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error))


def held(host, port, file):
    stream = connected(host, port)
    stream.sendall((1).to_bytes(8, "big"))
    stream.recv(1)
    open(file, "w").close()
    print(told(lambda: "end" if stream.recv(1) == b"" else "bytes"))


def asked(host, port):
    print(told(lambda: connected(host, port) and "connected"))


{"serve": serve, "take": take, "both": both, "drop": drop, "held": held, "asked": asked}[sys.argv[1]](*sys.argv[2:])
