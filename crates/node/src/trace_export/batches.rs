//! Spans that are sent together.

use edgefaas_functions::trace::TraceSpan;

/// Maximum number of spans in a batch, as the default of `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`.
const MAX_SPANS: usize = 512;
/// Maximum size of the texts of a batch, in bytes, unless one span has more. Collectors take messages of 4 MiB over gRPC, and
/// names and numbers are not in it.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The spans in batches, in order.
pub(super) fn batches(spans: &[TraceSpan]) -> impl Iterator<Item = &[TraceSpan]> {
    let mut rest = spans;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |span: &&TraceSpan| {
            bytes += span.text_bytes();
            bytes <= MAX_TEXT_BYTES
        };
        let count = rest.iter().take(MAX_SPANS).take_while(fits).count().max(1).min(rest.len());
        let batch;
        (batch, rest) = rest.split_at(count);
        (!batch.is_empty()).then_some(batch)
    })
}
