//! Smaller parts of the standards that libraries ask for.

use serde_json::json;

use super::answer;
use crate::support::Bench;

#[tokio::test]
async fn other_encodings_are_decoded() {
    let seen = answer(
        &Bench::new(),
        r#"
        const bytes = (...values) => new Uint8Array(values);
        const thrown = (run) => { try { return run(); } catch (error) { return error.name; } };
        const utf16 = new TextDecoder("utf-16le");
        // A pair of surrogates and a byte are cut in two.
        const parts = [bytes(0xff, 0xfe, 0x61), bytes(0x00, 0x3d, 0xd8), bytes(0x00, 0xde)].map((part) => utf16.decode(part, { stream: true }));
        const latin1 = new TextDecoder("latin1");
        return [
            parts, utf16.decode(), latin1.decode(bytes(0x67, 0x72, 0xfc, 0xdf, 0x80)), latin1.encoding, utf16.encoding, new TextDecoder("UTF-16BE").decode(bytes(0, 0x61)),
            new TextDecoder("utf-16").decode(bytes(0x61, 0, 0x3d, 0xd8, 0x62)), thrown(() => new TextDecoder("utf-16le", { fatal: true }).decode(bytes(0x3d, 0xd8))),
            thrown(() => new TextDecoder("shift_jis")), new TextDecoder().decode(bytes(0xef, 0xbb, 0xbf, 0x61)), new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes(0xef, 0xbb, 0xbf)).length,
            latin1.decode(new Uint8Array(100000).fill(0xe9)).length,
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            ["", "a", "😀"],
            "",
            "grüß€",
            "windows-1252",
            "utf-16le",
            "a",
            "a\u{fffd}\u{fffd}",
            "TypeError",
            "RangeError",
            "a",
            1,
            100_000
        ])
    );
}

#[tokio::test]
async fn values_are_cloned_and_transferred() {
    let seen = answer(
        &Bench::new(),
        r#"
        const thrown = (run) => { try { return run(); } catch (error) { return error.name; } };
        const buffer = new Uint8Array([1, 2, 3]).buffer;
        const { view, same } = structuredClone({ view: new Uint8Array(buffer, 1), same: buffer }, { transfer: [buffer] });
        const kept = new ArrayBuffer(2);
        return [
            [...view], view.buffer === same, buffer.byteLength, buffer.detached, thrown(() => structuredClone(buffer)), thrown(() => structuredClone({}, { transfer: [{}] })),
            thrown(() => structuredClone(() => 1, { transfer: [kept] })), kept.byteLength, typeof structuredClone(Object(5n)).valueOf(), structuredClone(new RangeError("r", { cause: [1] })).cause,
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([
            [2, 3],
            true,
            0,
            true,
            "DataCloneError",
            "DataCloneError",
            "DataCloneError",
            2,
            "bigint",
            [1]
        ])
    );
}

/// The engine has these; a change of it must not lose them.
#[tokio::test]
async fn recent_parts_of_the_language_are_there() {
    let seen = answer(
        &Bench::new(),
        r#"
        const { promise, resolve } = Promise.withResolvers();
        resolve(1);
        return [
            await promise, await Array.fromAsync((async function* () { yield 1; yield 2; })()), Iterator.from([1, 2, 3, 4]).filter((n) => n % 2).map((n) => n * 2).toArray(),
            [3, 1].toSorted(), Object.groupBy([1, 2, 3], (n) => (n % 2 ? "odd" : "even")), new Set([1, 2]).union(new Set([3])).size, "a\ud800".isWellFormed(),
            await Promise.try(() => 5), [1, 2].at(-1), [1, 2, 3].findLast((n) => n < 3), /(?<y>\d+)/v.exec("in 2024").groups.y, Array.from({ length: 2 }).with(0, 7)[0],
        ];"#,
    )
    .await;
    assert_eq!(
        seen,
        json!([1, [1, 2], [2, 6], [1, 3], { "odd": [1, 3], "even": [2] }, 3, false, 5, 2, 2, "2024", 7])
    );
}
