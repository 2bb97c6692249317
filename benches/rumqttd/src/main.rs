//! rumqttd with the configuration file that is named.

fn main() {
    let file = std::env::args().nth(1).expect("usage: rumqttd-peer FILE");
    let text = std::fs::read_to_string(&file).expect("the configuration can be read");
    let config: rumqttd::Config = toml::from_str(&text).expect("the configuration is valid");
    rumqttd::Broker::new(config).start().expect("the broker runs");
}
