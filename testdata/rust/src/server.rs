use rmcp::{
    handler::server::{router::{prompt::PromptRouter, tool::ToolRouter}, wrapper::{Json, Parameters}},
    model::*,
    prompt, prompt_handler, prompt_router,
    schemars::{self, JsonSchema},
    service::RequestContext,
    tool, tool_handler, tool_router, ErrorData, Peer, RoleServer, ServerHandler, ServiceExt,
};
use serde::{Deserialize, Serialize};

#[derive(Deserialize, JsonSchema)]
struct Echo {
    /// What to say.
    text: String,
    #[serde(default)]
    times: u32,
}

#[derive(Deserialize, JsonSchema)]
struct Goal {
    /// What to reach.
    goal: String,
}

#[derive(Serialize, JsonSchema)]
struct Weather {
    city: String,
    celsius: f64,
}

#[derive(Deserialize, JsonSchema)]
struct City {
    city: String,
}

struct Server {
    tool_router: ToolRouter<Self>,
    prompt_router: PromptRouter<Self>,
}

#[tool_router]
impl Server {
    /// Says it again.
    #[tool]
    async fn echo(&self, Parameters(e): Parameters<Echo>) -> String {
        vec![e.text; e.times.max(1) as usize].join(" ")
    }

    /// The weather of a city.
    #[tool]
    async fn weather(&self, Parameters(c): Parameters<City>) -> Json<Weather> {
        Json(Weather { city: c.city, celsius: 21.5 })
    }

    /// Fails as a tool does.
    #[tool]
    async fn fails(&self) -> Result<CallToolResult, ErrorData> {
        Ok(CallToolResult::error(vec![ContentBlock::text("it failed")]))
    }

    /// Fails as a server does.
    #[tool]
    async fn breaks(&self) -> Result<CallToolResult, ErrorData> {
        Err(ErrorData::internal_error("it broke", None))
    }

    /// Counts and reports progress.
    #[tool]
    async fn counts(&self, meta: RequestMetaObject, client: Peer<RoleServer>) -> String {
        if let Some(token) = meta.get_progress_token() {
            for n in 1..=3 {
                let at = ProgressNotificationParam::new(token.clone(), f64::from(n)).with_total(3.0);
                let _ = client.notify_progress(at).await;
            }
        }
        "3".into()
    }

    /// Sleeps for an hour.
    #[tool]
    async fn sleeps(&self) -> String {
        tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
        "awake".into()
    }
}

#[prompt_router]
impl Server {
    /// Plans how to reach a goal.
    #[prompt]
    async fn plan(&self, Parameters(g): Parameters<Goal>) -> Vec<PromptMessage> {
        vec![PromptMessage::new_text(Role::User, format!("Make a plan to {}.", g.goal))]
    }
}

#[tool_handler(router = self.tool_router)]
#[prompt_handler(router = self.prompt_router)]
impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_prompts().enable_resources().build())
    }

    async fn list_resources(&self, _: Option<PaginatedRequestParams>, _: RequestContext<RoleServer>) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(vec![Resource::new("note://today", "today")]))
    }

    async fn read_resource(&self, r: ReadResourceRequestParams, _: RequestContext<RoleServer>) -> Result<ReadResourceResponse, ErrorData> {
        match r.uri.as_str() {
            "note://today" => Ok(ReadResourceResult::new(vec![ResourceContents::text("water the plants", r.uri.clone())]).into()),
            _ => Err(ErrorData::resource_not_found("no such note", None)),
        }
    }
}

pub async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server { tool_router: Server::tool_router(), prompt_router: Server::prompt_router() };
    server.serve(rmcp::transport::stdio()).await?.waiting().await?;
    Ok(())
}
