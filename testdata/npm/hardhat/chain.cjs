#!/usr/bin/env node
// Hardhat's node with the flags of testdata/chain: chain.cjs -listen 127.0.0.1:8545. A block
// appears when evm_mine is called. anvil_reorg [depth] goes back to a snapshot, which is
// taken before each block.
process.env.HARDHAT_CONFIG = require("path").join(__dirname, "hardhat.config.cjs");
process.env.HARDHAT_DISABLE_TELEMETRY_PROMPT = "true";
const { provider } = require("hardhat").network;

// The deterministic deployment proxy, which other development chains have too.
const factory = "0x4e59b44847b379578588920cA78FbF26c0B4956C";
const code = "0x7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffe03601600081602082378035828234f58015156039578182fd5b8082525050506014600cf3";

const snapshots = [];

async function mine() {
  snapshots.push(await provider.send("evm_snapshot"));
  return provider.send("evm_mine");
}

async function reorg(depth) {
  await provider.send("evm_revert", [snapshots.splice(-depth)[0]]);
  for (let i = 0; i <= depth; i++) await mine();
}

async function answer({ id, method, params }) {
  try {
    const result = method === "evm_mine" ? await mine() : method === "anvil_reorg" ? ((await reorg(params[0])) ?? null) : await provider.send(method, params);
    return { jsonrpc: "2.0", id, result };
  } catch (e) {
    return { jsonrpc: "2.0", id, error: { code: e.code ?? -32000, message: e.message } };
  }
}

let last = provider.send("hardhat_setCode", [factory, code]); // one request after the other
const [host, port] = process.argv[process.argv.indexOf("-listen") + 1].split(":");
require("http")
  .createServer((req, res) => {
    const chunks = [];
    req.on("data", (c) => chunks.push(c));
    req.on("end", () => {
      last = last.then(() => answer(JSON.parse(Buffer.concat(chunks)))).then((a) => res.setHeader("Content-Type", "application/json").end(JSON.stringify(a)));
    });
  })
  .listen(Number(port), host);
