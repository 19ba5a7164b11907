//! The codes of other crates, for comparison in the same run. Each is used as
//! its documentation suggests for speed: objects, plans and buffers are kept
//! from block to block where the crate can do that.

use std::hint::black_box;
use std::time::Duration;

use crate::bench::{Setting, best_of};

/// Time to encode and to decode a block, by crate. Crates that cannot do the
/// block are left out.
pub(crate) fn all(
    setting: &Setting,
    source: &[u8],
    patterns: &[Vec<usize>],
) -> Vec<(&'static str, Duration, Duration)> {
    let named = |name, times: Option<(Duration, Duration)>| times.map(|(e, d)| (name, e, d));
    [
        named("reed-solomon-simd", simd(setting, source, patterns)),
        named("reed-solomon-erasure", erasure(setting, source, patterns)),
        named("raptorq", raptorq(setting, source, patterns)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn simd(setting: &Setting, source: &[u8], patterns: &[Vec<usize>]) -> Option<(Duration, Duration)> {
    use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
    let Setting {
        n,
        repairs,
        symbol_len,
        ..
    } = *setting;
    let mut encoder = ReedSolomonEncoder::new(n, repairs, symbol_len).ok()?;
    let mut symbols = vec![0; repairs * symbol_len];
    let mut encode_once = || {
        for symbol in source.chunks(symbol_len) {
            encoder.add_original_shard(symbol).ok()?;
        }
        let result = encoder.encode().ok()?;
        for (symbol, out) in result.recovery_iter().zip(symbols.chunks_mut(symbol_len)) {
            out.copy_from_slice(symbol);
        }
        Some(())
    };
    encode_once()?;
    let encode = best_of(setting.time, || {
        black_box(encode_once());
    });
    let mut decoder = ReedSolomonDecoder::new(n, repairs, symbol_len).ok()?;
    let mut memory = source.to_vec();
    let mut turn = 0;
    let mut decode_once = || {
        turn = (turn + 1) % patterns.len();
        let lost = &patterns[turn];
        let mut next = lost.iter().peekable();
        for (i, symbol) in memory.chunks(symbol_len).enumerate() {
            if next.next_if(|lost| **lost == i).is_none() {
                decoder.add_original_shard(i, symbol).ok()?;
            }
        }
        for (i, symbol) in symbols.chunks(symbol_len).enumerate().take(lost.len()) {
            decoder.add_recovery_shard(i, symbol).ok()?;
        }
        let result = decoder.decode().ok()?;
        for (i, symbol) in result.restored_original_iter() {
            memory[i * symbol_len..][..symbol_len].copy_from_slice(symbol);
        }
        Some(())
    };
    decode_once()?;
    let decode = best_of(setting.time, || {
        black_box(decode_once());
    });
    assert!(
        memory == source,
        "reed-solomon-simd restored something else"
    );
    Some((encode, decode))
}

fn erasure(
    setting: &Setting,
    source: &[u8],
    patterns: &[Vec<usize>],
) -> Option<(Duration, Duration)> {
    use reed_solomon_erasure::galois_8::ReedSolomon;
    let Setting {
        n,
        repairs,
        symbol_len,
        ..
    } = *setting;
    let codec = ReedSolomon::new(n, repairs).ok()?;
    let data: Vec<&[u8]> = source.chunks(symbol_len).collect();
    let mut parity = vec![vec![0; symbol_len]; repairs];
    codec.encode_sep(&data, &mut parity).ok()?;
    let encode = best_of(setting.time, || {
        black_box(codec.encode_sep(&data, &mut parity).is_ok());
    });
    let mut shards: Vec<(Vec<u8>, bool)> = data
        .iter()
        .map(|symbol| symbol.to_vec())
        .chain(parity)
        .map(|symbol| (symbol, true))
        .collect();
    let mut turn = 0;
    let mut decode_once = || {
        turn = (turn + 1) % patterns.len();
        for lost in &patterns[turn] {
            shards[*lost].1 = false;
        }
        let result = codec.reconstruct_data(&mut shards);
        // The crate fills the shards but leaves the flags to the caller.
        for lost in &patterns[turn] {
            shards[*lost].1 = true;
        }
        result.ok()
    };
    decode_once()?;
    let decode = best_of(setting.time, || {
        black_box(decode_once());
    });
    let restored = shards.iter().zip(&data);
    let is_right = restored
        .into_iter()
        .all(|(shard, symbol)| shard.0 == *symbol);
    assert!(is_right, "reed-solomon-erasure restored something else");
    Some((encode, decode))
}

fn raptorq(
    setting: &Setting,
    source: &[u8],
    patterns: &[Vec<usize>],
) -> Option<(Duration, Duration)> {
    use raptorq::{
        ObjectTransmissionInformation, SourceBlockDecoder, SourceBlockEncoder,
        SourceBlockEncodingPlan,
    };
    let Setting {
        n,
        repairs,
        symbol_len,
        ..
    } = *setting;
    let symbol_size = u16::try_from(symbol_len).ok()?;
    // Its symbols are aligned; it panics at others.
    if symbol_size % 8 != 0 {
        return None;
    }
    let config = ObjectTransmissionInformation::new(source.len() as u64, symbol_size, 1, 1, 8);
    let plan = SourceBlockEncodingPlan::generate(u16::try_from(n).ok()?);
    let encoder = || SourceBlockEncoder::with_encoding_plan(0, &config, source, &plan);
    let encode = best_of(setting.time, || {
        black_box(encoder().repair_packets(0, repairs as u32));
    });
    // Two more repairs than made above, as losses of all are sometimes too many.
    let (originals, repairs) = (
        encoder().source_packets(),
        encoder().repair_packets(0, repairs as u32 + 2),
    );
    let mut turn = 0;
    let mut decode_once = || {
        turn = (turn + 1) % patterns.len();
        let lost = &patterns[turn];
        let kept = originals.iter().enumerate();
        let kept = kept.filter(|(i, _)| lost.binary_search(i).is_err());
        let kept = kept.map(|(_, packet)| packet);
        let packets = kept.chain(&repairs).cloned();
        let mut decoder = SourceBlockDecoder::new(0, &config, source.len() as u64);
        decoder.decode(packets)
    };
    if decode_once()? != source {
        return None;
    }
    let decode = best_of(setting.time, || {
        black_box(decode_once());
    });
    Some((encode, decode))
}
