//! A peer that has the keys and says anything.

use std::net::SocketAddr;

use sphinx_proto::wire::{
    BlockSack, ConnectionId, Frame, Header, LossReport, NamedBlock, PaperCounts, SymbolSack,
};
use sphinx_proto::{
    BlockId, PacketMeta, PacketNumber, Paper, Role, Slot, StreamId, StreamPart, Time, Tuple,
    Urgency,
};
use sphinx_sim::Rng;

use crate::second::session;

fn frame(rng: &mut Rng) -> Frame<'static> {
    let counts = PaperCounts {
        ect: rng.below(100),
        ce: rng.below(100),
        credit: rng.word() >> rng.within(2, 50),
    };
    let block = |rng: &mut Rng| BlockId::new(rng.word() >> if rng.chance(0.8) { 60 } else { 3 });
    if rng.chance(0.5) {
        let base = block(rng);
        let low = base + 1 + rng.below(4);
        return Frame::PaperBlocks(BlockSack {
            counts,
            loss: rng.chance(0.7).then(|| LossReport {
                period: rng.below(20),
                lost: rng.below(101) as u32,
                of: 100,
            }),
            base,
            decoded: vec![(low, low + rng.below(9))],
        });
    }
    let named = |rng: &mut Rng, block, n: u16| NamedBlock {
        block,
        n,
        recovered: (0..n / 8).map(|_| rng.word() as u8).collect(),
    };
    let latest = block(rng);
    let n = 8 * (1 + rng.below(30) as u16);
    let upto = BlockId::new(latest.get() - rng.below(3).min(latest.get()));
    let unrecovered = (0..upto.get().min(9))
        .filter(|_| rng.chance(0.4))
        .collect::<Vec<_>>();
    let unrecovered = unrecovered.into_iter().map(|id| {
        let n = 8 * rng.below(20) as u16;
        named(rng, BlockId::new(id), n)
    });
    let unrecovered = unrecovered.collect();
    Frame::PaperSymbols(SymbolSack {
        counts,
        latest: named(rng, latest, n),
        upto,
        unrecovered,
    })
}

#[test]
fn anything_may_be_said() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut victim = session(Role::Client, 1, 2, Paper::default());
        let mut now = Time::ZERO;
        for step in 0..60 {
            now += rng.below(3_000_000);
            let shape = victim.block_shape(1);
            let stream = StreamId::new(Role::Client, 0);
            let mut parts = [StreamPart {
                stream,
                bytes: 1,
                end_of_stream: false,
                cost: 0,
            }];
            if victim.can_submit(shape, Urgency::default(), &mut parts) {
                let slot = Slot(step as u32);
                victim.submit(slot, shape, (false, Urgency::default()), &mut parts);
            }
            if victim.poll_timeout().is_some_and(|at| at <= now) {
                victim.handle_timeout(now);
            }
            let mut sent = 0;
            while victim.poll_transmit(now).is_some() {
                sent += 1;
                assert!(sent < 20_000, "it would send for ever");
            }
            let mut body = Vec::new();
            frame(&mut rng).encode(&mut body);
            let meta = PacketMeta {
                now,
                received_at: now,
                packet_number: PacketNumber::new(step),
                tuple: Tuple {
                    remote: SocketAddr::from(([10, 0, 0, 2], 1)),
                    local_ip: None,
                },
                ecn: 0,
                datagram_len: body.len() + 38,
            };
            let cid = ConnectionId::new([1; 8]).expect("not zero");
            let header = Header::control(cid, meta.packet_number, false);
            victim.handle_packet(&meta, &header, &body);
            while victim.poll_event().is_some() {}
        }
    }
}
