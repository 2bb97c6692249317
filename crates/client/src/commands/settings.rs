//! `edgefaas settings [KEY]`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global, Settings};
use crate::connection;
use crate::exit::{Exit, Failure};
use crate::output;

pub async fn run(args: &Settings, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let response = client.get_settings(proto::GetSettingsRequest {}).await;
    let all = response.map_err(|status| connection::failure(&status))?.into_inner();
    let proto::GetSettingsResponse { file, settings, rules_file, rules, token_file, gateway_token_file } =
        all;
    let key = args.key.as_deref().unwrap_or_default();
    let settings: Vec<_> = settings.into_iter().filter(|setting| setting.key.contains(key)).collect();
    if settings.is_empty() {
        let text = format!("no setting has `{key}` in its name; `edgefaas settings` shows all");
        return Err(Failure::new(Exit::NotFound, text));
    }
    if global.output == Format::Json {
        let setting = |setting: &proto::Setting| {
            let line = (setting.line > 0).then_some(setting.line);
            let value = (!setting.value.is_empty()).then_some(&setting.value);
            json!({ "key": setting.key, "value": value, "source": setting.source, "line": line })
        };
        let settings: Vec<_> = settings.iter().map(setting).collect();
        return output::json(&json!({
            "file": file,
            "settings": settings,
            "rules_file": rules_file,
            "rules": rules,
            "token_file": token_file,
            "gateway_token_file": gateway_token_file,
        }));
    }
    let rows = settings.iter().map(|setting| {
        let place = match &*setting.source {
            "file" => format!("{file}:{}", setting.line),
            source => source.to_owned(),
        };
        let value = if setting.value.is_empty() { "(not set)" } else { &setting.value };
        vec![setting.key.clone(), value.to_owned(), place]
    });
    output::table(&["SETTING", "VALUE", "FROM"], rows.collect())?;
    let rules = if rules_file.is_empty() { "none" } else { &rules_file };
    eprintln!("access rules: {rules}; tokens: {token_file}, {gateway_token_file}");
    Ok(())
}
