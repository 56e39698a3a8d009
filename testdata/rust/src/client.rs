use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::{
    model::*,
    service::{NotificationContext, PeerRequestOptions, RunningService},
    transport::TokioChildProcess,
    ClientHandler, RoleClient, ServiceError, ServiceExt,
};
use serde::Deserialize;
use serde_json::{json, Map, Value};

#[derive(Deserialize)]
struct Act {
    named: String,
    r#do: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    args: Map<String, Value>,
}

#[derive(Clone, Default)]
struct Client {
    heard: Arc<Mutex<Vec<Value>>>,
}

impl ClientHandler for Client {
    async fn on_progress(&self, p: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.heard.lock().unwrap().push(json!([p.progress, p.total]));
    }
}

fn call(a: &Act) -> CallToolRequestParams {
    CallToolRequestParams::new(a.name.clone()).with_arguments(a.args.clone())
}

async fn perform(c: &RunningService<RoleClient, Client>, a: &Act) -> Result<Value, ServiceError> {
    let value = match a.r#do.as_str() {
        "list_tools" => json!(c.list_tools(None).await?),
        "list_resources" => json!(c.list_resources(None).await?),
        "list_prompts" => json!(c.list_prompts(None).await?),
        "read" => json!(c.read_resource(ReadResourceRequestParams::new(a.name.clone())).await?),
        "prompt" => json!(c.get_prompt(GetPromptRequestParams::new(a.name.clone()).with_arguments(a.args.clone())).await?),
        "cancel" => {
            let mut options = PeerRequestOptions::no_options();
            options.timeout = Some(Duration::from_secs(1));
            let request = ClientRequest::CallToolRequest(Request::new(call(a)));
            match c.send_cancellable_request(request, options).await?.await_response().await {
                Err(ServiceError::Timeout { .. }) => json!("cancelled"),
                other => json!(other?),
            }
        }
        _ => json!(c.call_tool(call(a)).await?),
    };
    Ok(value)
}

pub async fn act(command: &str, args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let acts: Vec<Act> = serde_json::from_reader(std::io::stdin())?;
    let mut start = tokio::process::Command::new(command);
    start.args(args);
    let client = Client::default();
    let heard = client.heard.clone();
    let running = client.serve(TokioChildProcess::new(start)?).await?;
    let mut out = Map::new();
    for a in &acts {
        let value = match perform(&running, a).await {
            Ok(value) => value,
            Err(ServiceError::McpError(e)) => json!({"code": e.code, "message": e.message}),
            Err(e) => json!({"failed": e.to_string()}),
        };
        out.insert(a.named.clone(), value);
    }
    running.cancel().await?;
    out.insert("heard".into(), json!(*heard.lock().unwrap()));
    println!("{}", Value::Object(out));
    Ok(())
}
