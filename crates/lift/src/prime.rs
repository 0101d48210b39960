// SPDX-License-Identifier: Apache-2.0
//! Before the start, with `--backing pagecache`: the program's files in huge folios.

use crate::job::LiftJob;
use crate::options::Verbosity;
use hugelift_core::addr::human_bytes;
use hugelift_pages::pagecache;
use std::path::Path;
use std::time::Instant;

impl LiftJob {
    /// Brings the program's files into huge folios. This is done only for a user who names the
    /// backing: dropping and rereading the files of a large program takes a tenth of a second.
    pub(crate) fn prime(&mut self, path: &Path) {
        let began = Instant::now();
        let takes = |path: &Path| self.policy.objects.takes_path(path);
        let priming = pagecache::prime_program(path, &self.policy.parts, takes);
        tracing::debug!(?priming, elapsed = ?began.elapsed(), "primed");
        for file in priming.files {
            let obstacle =
                file.obstacles().into_iter().max_by_key(|(_, b)| b.bytes).map(|(_, b)| &b.obstacle);
            let (huge, whole) = (human_bytes(file.huge_bytes), human_bytes(file.whole_bytes));
            let why = obstacle.map_or(String::new(), |o| format!(": {o}"));
            let line = format!("primed {huge} of {whole} of {}{why}", file.path);
            self.asked.say(Verbosity::Summary, &line);
            if obstacle.is_some() {
                self.primed.obstacle.get_or_insert(line);
            }
        }
        self.primed.is_complete = priming.is_complete;
    }
}
