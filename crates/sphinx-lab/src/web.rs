//! Pages of many objects, as browsers fetch them.

use serde::{Deserialize, Serialize};

use crate::link::Random;

/// Pages, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Web {
    /// Number of pages.
    pub pages: u64,
    /// Objects of a page besides the document that names them. All pages together have at most 200,
    /// well below the streams of a session.
    pub objects: u64,
    /// Seed of the objects' sizes.
    pub seed: u64,
}

/// Objects fetched side by side: as many connections as browsers open.
pub const SIDE_BY_SIDE: usize = 6;

/// Median of an object's size in bytes.
const OBJECT_BYTES_MEDIAN: f64 = 15_000.0;
/// Standard deviation of the logarithm of an object's size.
const OBJECT_DEVIATION: f64 = 1.2;
/// Largest object, in bytes.
const OBJECT_BYTES_MAX: f64 = 1_000_000.0;
/// The document that names the objects.
const DOCUMENT_BYTES: u64 = 30_000;

impl Web {
    /// Bytes of an object; number 0 is the document.
    pub fn object_bytes(&self, page: u64, object: u64) -> u64 {
        if object == 0 {
            return DOCUMENT_BYTES;
        }
        let mut random =
            Random(self.seed ^ (page << 32 | object).wrapping_mul(0xd6e8_feb8_6659_fd93));
        let size = OBJECT_BYTES_MEDIAN * (OBJECT_DEVIATION * random.normal()).exp();
        size.clamp(100.0, OBJECT_BYTES_MAX) as u64
    }

    /// Bytes of all pages together.
    pub fn bytes(&self) -> u64 {
        let page = |page| (0..=self.objects).map(move |object| self.object_bytes(page, object));
        (0..self.pages).flat_map(page).sum()
    }

    /// The pages in a few words.
    pub fn description(&self) -> String {
        format!(
            "{} web pages of {} objects, {:.1} MB in all, {SIDE_BY_SIDE} side by side",
            self.pages,
            self.objects + 1,
            self.bytes() as f64 / 1e6
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_like_pages() {
        let web = Web {
            pages: 5,
            objects: 30,
            seed: 1,
        };
        assert_eq!(web.bytes(), web.bytes());
        let mean = web.bytes() / 5;
        assert!((300_000..4_000_000).contains(&mean), "{mean}");
    }
}
