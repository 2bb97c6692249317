//! What a loaded policy costs functions that it does not concern: batches with and without it in turns, on the same nodes.

use edgefaas_benches::fleet::Member;
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::{median, quantile};

use crate::cases::{Case, Load};
use crate::policies::Policy;
use crate::users;

const ROWS: [&str; 2] = ["no policy", "policy loaded, function without a tag"];
/// Batches of each, and requests of a batch. One user: what is measured is the time of a call, not who waits for a processor.
const BATCHES: usize = 60;
const QUICK_BATCHES: usize = 8;
const CASES: [(Case, usize); 2] = [(Case::Hellojs, 400), (Case::Matrixmult, 10)];

/// Adds a table and a target for each case.
pub fn measure(entries: &[&Member<'_>], quick: bool, report: &mut Report) -> anyhow::Result<()> {
    // A request that enters at one node and stays there: the others have no part in it.
    let [entry, ..] = entries else { return Ok(()) };
    let gateway = [(entry.host, entry.http)];
    let mut tables = CASES.map(|(case, requests)| {
        let title = format!("{}, batches of {requests} requests in turns", case.name());
        Table::new(&title, &ROWS, &[("p50", "ms"), ("p99", "ms"), ("errors", "%")])
    });
    for batch in 0..if quick { QUICK_BATCHES } else { BATCHES } {
        // Which comes first changes, too: the machine may become slower or faster meanwhile.
        let order = if batch % 2 == 0 { [0, 1] } else { [1, 0] };
        for row in order {
            [Policy::None, Policy::TagDefault][row].set_on(&entries[..1])?;
            for ((case, requests), table) in CASES.iter().zip(&mut tables) {
                let load = |requests| Load { users: 1, requests, pause: std::time::Duration::ZERO };
                users::run(case.path(), load(requests / 10), &gateway);
                let outcome = users::run(case.path(), load(*requests), &gateway);
                let times = &outcome.times_ms;
                table.add(row, &[median(times), quantile(times, 0.99), outcome.errors_percent()]);
            }
        }
    }
    for ((case, _), table) in CASES.iter().zip(&tables) {
        let text = format!("{}: with a loaded policy at most 1.02 times the p50 without", case.name());
        report.targets.push(Target::at_most("placement-loaded", &text, table.ratio(1, 0, 0), 1.02));
    }
    report.tables.extend(tables);
    Ok(())
}
