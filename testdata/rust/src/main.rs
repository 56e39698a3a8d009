//! The client and the server of the Rust SDK, for the tests.
//!
//! `peer serve` is a server over stdio. `peer act COMMAND ARGS…` starts a server over stdio,
//! performs the acts on stdin, an array of {named, do, name, args}, and prints an object with
//! what came of each.

mod client;
mod server;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("serve") => server::serve().await,
        Some("act") if args.len() > 1 => client::act(&args[1], &args[2..]).await,
        _ => Err("serve, or act and a command".into()),
    }
}
