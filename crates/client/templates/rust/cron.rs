use edgefaas::prelude::*;

#[edgefaas::function]
fn handle(_event: Event, context: Context) -> Result<(), Error> {
    let runs = context.object("{{name}}").counter("runs");
    runs.add(1)?;
    let count = runs.value()?;
    log::info!("run {count}");
    context.publish("{{name}}/tick", Json(count))?;
    Ok(())
}
