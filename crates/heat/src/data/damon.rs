// SPDX-License-Identifier: Apache-2.0
//! Watches a process by DAMON of virtual addresses, through its sysfs interface
//! (Documentation/admin-guide/mm/damon/usage.rst in Linux).
//!
//! DAMON as it is meant to be used splits and merges its regions. Here each span that holds data is one region from the
//! beginning to the end, as these settings bring it about: `fvaddr` keeps the regions that are given, and as many regions as
//! there are are the fewest and the most that are permitted. So no span is missed because its region is large.
//!
//! The kernel has one such configuration for all. If anybody else has one, it is left alone.

mod kdamond;

use super::background::Background;
use super::pages::{self, Resident};
use hugelift_core::addr::PageSize;
use hugelift_core::heat::data::areas::{Areas, Piece};
use hugelift_core::heat::data::count::count;
use hugelift_core::heat::data::damon::Checks;
use hugelift_core::heat::data::{DataInUse, Method};
pub use kdamond::Refused;
use kdamond::{Kdamond, Setup};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Regions at most. With more the check of each would be too rare.
const MOST: usize = 4096;
/// Time that the kernel gets for each region, of which it uses 1 to 2 us: so its thread takes at most 2 % of a CPU.
const OF_REGION: Duration = Duration::from_micros(100);
/// The shortest time between two checks, for a process with few regions that is watched for a short time.
const SHORTEST: Duration = Duration::from_millis(10);
/// The longest time between two checks of a process with few regions.
const USUAL: Duration = Duration::from_millis(100);
/// Checks of each region that are summed up.
const CHECKS: u32 = 5;

/// A process that DAMON watches. Dropping it ends that.
#[derive(Debug)]
pub struct Watch {
    resident: Vec<Resident>,
    span: PageSize,
    interval: Duration,
    background: Background<Checks>,
}

impl Watch {
    /// Begins to watch the process `pid` for about `time`. `pieces` finds its spans of `span` bytes, if DAMON is there.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn start(
        sys: &Path,
        pid: u32,
        pieces: impl FnOnce() -> io::Result<Vec<Resident>>,
        span: PageSize,
        time: Duration,
    ) -> Result<Watch, Refused> {
        let claimed = Kdamond::claim(sys)?;
        let (resident, span) = pages::coarser(pieces().map_err(Refused::Pages)?, span, MOST);
        if resident.is_empty() {
            return Err(Refused::NoData);
        }
        let pieces: Vec<Piece> = resident.iter().map(|(piece, _)| *piece).collect();
        let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        let interval = (time / 50).clamp(SHORTEST, USUAL).max(OF_REGION * count);
        let ranges = pieces.iter().map(|piece| piece.range).collect();
        let kdamond = claimed.start(&Setup { pid, ranges, interval, checks: CHECKS })?;
        // DAMON ends with the process.
        let step = move |checks: &mut Checks, _| {
            kdamond.regions().map(|regions| checks.add(&regions, CHECKS.into())).is_ok()
        };
        let background = Background::start("damon", interval * CHECKS, Checks::new(pieces), step);
        Ok(Watch { resident, span, interval, background: background.map_err(Refused::Thread)? })
    }

    /// Ends it, and returns what was seen.
    ///
    /// # Errors
    /// Nothing was checked; the text says why.
    pub fn finish(self, areas: &Areas) -> Result<DataInUse, String> {
        let checks = self.background.finish().ok_or("its thread died")?;
        if checks.checks() == 0 {
            return Err("it checked nothing: the process ended, or the time was too short".into());
        }
        let resident: HashMap<u64, u64> =
            self.resident.iter().map(|(piece, bytes)| (piece.range.start.0, *bytes)).collect();
        let of = |piece: &Piece| resident.get(&piece.range.start.0).copied().unwrap_or(0);
        let data = count(areas, Method::Damon, Some(self.span), checks.seen(of));
        let interval = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        Ok(DataInUse { interval_ms: Some(interval), ..data })
    }
}
