//! Functions on a schedule.

use crate::support::{Mqtt5, TestNode};

#[tokio::test]
async fn a_schedule_fires_with_its_due_time() {
    let mut node = TestNode::start().await;
    let extra = r#"
        triggers = [{ cron = "* * * * * *" }]
        permissions = { publish = ["ticks"] }"#;
    let source = r#"export default (event, context) =>
        context.publish("ticks", { kind: event.kind, schedule: event.schedule, due: event.scheduledTime });"#;
    let mut client = Mqtt5::connect(&node, "c").await;
    client.subscribe("ticks").await;
    node.deploy_one("tick", extra, source).await;
    let mut due = Vec::new();
    for _ in 0..2 {
        let tick: serde_json::Value = serde_json::from_slice(&client.message().await.payload).unwrap();
        assert_eq!(tick["kind"], "cron");
        assert_eq!(tick["schedule"], "* * * * * *");
        due.push(tick["due"].as_u64().unwrap());
    }
    assert!(due[0] % 1000 == 0 && due[1] > due[0], "{due:?}");
}
