//! Tables of apps, functions and workflows.

use edgefaas_api::control as proto;

use crate::fitting::{Column, Fit};
use crate::output::{cell, earlier_revisions, micros, short, since, size};

const APP: Column = Column { name: "APP", fit: Fit::Middle(8) };
const FUNCTION: Column = Column { name: "FUNCTION", fit: Fit::Middle(14) };
const INVOCATIONS: Column = Column { name: "INVOCATIONS", fit: Fit::Whole };
const FAILED: Column = Column { name: "FAILED", fit: Fit::Whole };
const TRIGGERS: Column = Column { name: "TRIGGERS", fit: Fit::End(10, 0) };

/// The columns of [`app_row`].
pub const APPS: [Column; 4] = [
    APP,
    Column { name: "REVISION", fit: Fit::Whole },
    Column { name: "DEPLOYED", fit: Fit::End(12, 1) },
    Column { name: "EARLIER REVISIONS", fit: Fit::End(17, 0) },
];

/// The row of an app: its live revision and those that a rollback can go back to, the last one first.
pub fn app_row(app: &proto::App) -> Vec<String> {
    let deployed = u64::try_from(app.deployed_unix_ms).unwrap_or_default();
    let earlier = match earlier_revisions(app) {
        none if none.is_empty() => "-".to_owned(),
        earlier => earlier,
    };
    vec![app.name.clone(), short(&app.revision).to_owned(), since(deployed), earlier]
}

/// The columns of [`function_rows`].
pub const FUNCTIONS: [Column; 10] = [
    APP,
    FUNCTION,
    Column { name: "KIND", fit: Fit::LeftOut(2) },
    Column { name: "SIZE", fit: Fit::LeftOut(1) },
    INVOCATIONS,
    FAILED,
    Column { name: "REJECTED", fit: Fit::LeftOut(3) },
    Column { name: "PENDING", fit: Fit::LeftOut(4) },
    Column { name: "STATE", fit: Fit::End(8, 5) },
    TRIGGERS,
];

/// A row for each function of an app.
pub fn function_rows(app: &proto::App) -> Vec<Vec<String>> {
    let row = |function: &proto::Function| {
        let stats = function.stats.unwrap_or_default();
        let state = match function.error.as_str() {
            "" => "ok".to_owned(),
            error => format!("broken: {error}"),
        };
        vec![
            app.name.clone(),
            function.name.clone(),
            function.kind.clone(),
            size(function.source_bytes),
            stats.invocations.to_string(),
            stats.failures.to_string(),
            stats.rejected.to_string(),
            stats.pending.to_string(),
            state,
            cell(&function.triggers),
        ]
    };
    app.functions.iter().map(row).collect()
}

/// The columns of [`workflow_rows`].
pub const WORKFLOWS: [Column; 9] = [
    APP,
    Column { name: "WORKFLOW", fit: Fit::Middle(12) },
    Column { name: "VERSION", fit: Fit::End(7, 2) },
    Column { name: "LIVE", fit: Fit::Whole },
    // Of those that have failed.
    Column { name: "RETRYABLE", fit: Fit::Whole },
    Column { name: "COMPLETED", fit: Fit::LeftOut(3) },
    Column { name: "FAULTED", fit: Fit::Whole },
    Column { name: "MEAN", fit: Fit::LeftOut(1) },
    Column { name: "STARTED BY", fit: Fit::End(10, 0) },
];

/// A row for each workflow of an app.
pub fn workflow_rows(app: &proto::App) -> Vec<Vec<String>> {
    let row = |workflow: &proto::Workflow| {
        let version = if workflow.durable { " durable" } else { "" };
        vec![
            app.name.clone(),
            workflow.name.clone(),
            format!("{}{version}", workflow.version),
            workflow.live.to_string(),
            workflow.retryable.to_string(),
            workflow.completed.to_string(),
            workflow.faulted.to_string(),
            micros(workflow.mean_us),
            cell(&workflow.triggers),
        ]
    };
    app.workflows.iter().map(row).collect()
}

/// The columns of [`use_rows`].
pub const USES: [Column; 10] = [
    FUNCTION,
    INVOCATIONS,
    FAILED,
    Column { name: "COLD", fit: Fit::LeftOut(0) },
    Column { name: "WARM", fit: Fit::LeftOut(1) },
    Column { name: "CPU", fit: Fit::LeftOut(4) },
    Column { name: "MEMORY PEAK", fit: Fit::LeftOut(3) },
    Column { name: "P50", fit: Fit::LeftOut(5) },
    Column { name: "P90", fit: Fit::LeftOut(2) },
    Column { name: "P99", fit: Fit::LeftOut(6) },
];

/// A row for each function of an app: its counts and resources.
pub fn use_rows(app: &proto::App) -> Vec<Vec<String>> {
    let row = |function: &proto::Function| {
        let stats = function.stats.unwrap_or_default();
        vec![
            function.name.clone(),
            stats.invocations.to_string(),
            stats.failures.to_string(),
            stats.cold_starts.to_string(),
            stats.warm_starts.to_string(),
            micros(stats.cpu_us),
            size(stats.memory_peak_bytes),
            micros(stats.duration_p50_us),
            micros(stats.duration_p90_us),
            micros(stats.duration_p99_us),
        ]
    };
    app.functions.iter().map(row).collect()
}

/// The columns of [`deployed_rows`]; the time covers compiling, or evaluating JavaScript.
pub const DEPLOYED: [Column; 5] = [
    FUNCTION,
    Column { name: "KIND", fit: Fit::LeftOut(1) },
    Column { name: "SIZE", fit: Fit::LeftOut(2) },
    Column { name: "COMPILED IN", fit: Fit::Whole },
    TRIGGERS,
];

/// A row for each function of an app that was just deployed.
pub fn deployed_rows(app: &proto::App) -> Vec<Vec<String>> {
    let row = |function: &proto::Function| {
        vec![
            function.name.clone(),
            function.kind.clone(),
            size(function.source_bytes),
            micros(function.prepare_us),
            cell(&function.triggers),
        ]
    };
    app.functions.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::fitting;

    fn app(name: &str) -> proto::App {
        let triggers =
            ["mqtt buildings/+/floors/+/rooms/+/climate", "every 5m"].map(str::to_owned).to_vec();
        let stats = proto::FunctionStats {
            invocations: 12_345_678_901,
            failures: 123_456,
            rejected: 1_234_567,
            pending: 12_345,
            cold_starts: 123_456,
            warm_starts: 12_345_678_901,
            cpu_us: 999_999_999_999,
            memory_peak_bytes: 123 << 20,
            duration_p50_us: 999_999,
            duration_p90_us: 99_999_999,
            duration_p99_us: 99_999_999,
            ..Default::default()
        };
        let function = proto::Function {
            name: name.into(),
            kind: "javascript".into(),
            source_bytes: 123_456_789,
            triggers: triggers.clone(),
            error: "the code of another version cannot be compiled".into(),
            stats: Some(stats),
            prepare_us: 12_345_678,
        };
        let workflow = proto::Workflow {
            name: name.into(),
            version: "10.20.30-candidate".into(),
            durable: true,
            triggers,
            completed: 12_345_678,
            faulted: 1234,
            live: 12_345,
            retryable: 1000,
            mean_us: 123_456_789,
            ..Default::default()
        };
        proto::App {
            name: name.into(),
            revision: "0123456789abcdef".into(),
            functions: vec![function],
            workflows: vec![workflow],
            previous_revisions: vec!["fedcba9876543210".into(); 5],
            ..Default::default()
        }
    }

    #[test]
    fn tables_fit_and_their_names_and_counts_stay() {
        let app = app(&"温度-of-all-the-halls-and-floors-".repeat(3));
        for width in [60, 80, 100, 140] {
            for (columns, rows, stay) in [
                (&APPS[..], vec![app_row(&app)], "0123456789ab"),
                (&FUNCTIONS, function_rows(&app), "12345678901"),
                (&WORKFLOWS, workflow_rows(&app), "1000"),
                (&USES, use_rows(&app), "12345678901"),
                (&DEPLOYED, deployed_rows(&app), "12.3 s"),
            ] {
                let text = fitting::table(columns, rows, width);
                assert_eq!(text.lines().count(), 2, "{text}");
                assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
                assert!(text.contains("温度") && text.contains(stay), "{width}:\n{text}");
            }
        }
    }

    #[test]
    fn without_a_terminal_nothing_is_cut_off() {
        let app = app("a");
        let text = fitting::table(&WORKFLOWS, workflow_rows(&app), usize::MAX);
        assert_eq!(text.lines().count(), 2, "several texts of a cell are on its line: {text}");
        assert!(text.ends_with("  mqtt buildings/+/floors/+/rooms/+/climate; every 5m\n"), "{text}");
    }
}
