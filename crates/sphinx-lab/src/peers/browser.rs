//! A browser: the document of a page first, then its objects, several side by side.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use super::{
    Pattern, PeerError,
    http::{Client, Line, fetch},
};
use crate::{
    numbers::WebNumbers,
    stats::Distribution,
    web::{SIDE_BY_SIDE, Web},
};

/// Fetches all pages, until it is `over`; the bytes fetched and how long that took, if a page was whole.
pub(super) fn browse(
    web: &Web,
    client: &dyn Client,
    pattern: &Pattern,
    over: &AtomicBool,
) -> Result<(u64, Option<WebNumbers>), PeerError> {
    let mut lines: Vec<Box<dyn Line + '_>> = Vec::new();
    let mut pages_ms = Vec::new();
    let objects_ms = Mutex::new(Vec::new());
    let bytes = AtomicU64::new(0);
    let get = |line: &mut dyn Line, page, object| {
        let started = Instant::now();
        let length = fetch(line, &format!("/object/{page}/{object}"), pattern)?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        objects_ms
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(ms);
        bytes.fetch_add(length, Ordering::Relaxed);
        Ok(())
    };
    let mut load = |page| {
        let started = Instant::now();
        if lines.is_empty() {
            lines.push(client.line()?);
        }
        get(lines[0].as_mut(), page, 0)?;
        while lines.len() < SIDE_BY_SIDE {
            lines.push(client.line()?);
        }
        let next = AtomicU64::new(1);
        let work = |line: &mut dyn Line| -> Result<(), PeerError> {
            loop {
                let object = next.fetch_add(1, Ordering::Relaxed);
                if object > web.objects {
                    return Ok(());
                }
                get(line, page, object)?;
            }
        };
        thread::scope(|scope| {
            let work = &work;
            let workers: Vec<_> = lines
                .iter_mut()
                .map(|line| scope.spawn(move || work(line.as_mut())))
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or(Err(PeerError::Cannot("go on"))))
        })?;
        pages_ms.push(started.elapsed().as_secs_f64() * 1e3);
        Ok(())
    };
    match (0..web.pages).try_for_each(&mut load) {
        Ok(()) => {}
        Err(_) if over.load(Ordering::SeqCst) => {}
        Err(error) => return Err(error),
    }
    let objects_ms = objects_ms
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let both = Distribution::of(&pages_ms).zip(Distribution::of(&objects_ms));
    let numbers = both.map(|(pages, objects)| WebNumbers {
        pages: pages.count,
        page_ms_mean: pages.mean,
        page_ms_p50: pages.p50,
        page_ms_max: pages.max,
        object_ms_p50: objects.p50,
        object_ms_p99: objects.p99,
    });
    Ok((bytes.into_inner(), numbers))
}
