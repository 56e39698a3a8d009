// The NDJSON action protocol, client side, in plain Node:
//
//   node client.mjs PREFIX COMMAND [ARGUMENT...]
//
// starts the command, sends it every kind of request of the specification,
// good ones and bad ones, and prints the responses as one JSON object:
// "byId" has those with an id, "anonymous" the others in their order, and
// "exit" how the command ended. PREFIX stands before the names of actions.
// Anything on the command's stdout that is no response is an error.
import { spawn } from "node:child_process";

const [prefix, command, ...args] = process.argv.slice(2);
const invoke = (id, action, input) => ({ id, type: "invoke", payload: { action: prefix + action, input } });
const script = [
  { id: "list", type: "list_actions" },
  invoke("reply", "supportive_reply", { message: "I feel overwhelmed", risk_level: "medium" }),
  invoke("no-message", "supportive_reply", { risk_level: "low" }),
  invoke("empty-message", "supportive_reply", { message: "" }),
  invoke("echo", "echo", { text: "Grüße, 世界", nested: { list: [1, 2.5, null] } }),
  invoke("fail", "fail", {}),
  invoke("unknown", "no_such_action", {}),
  { id: "no-action", type: "invoke", payload: { input: {} } },
  { id: "no-payload", type: "invoke" },
  { id: "bad-type", type: "delete" },
  { id: 5, type: "list_actions" },
  '{"id":"malformed","type":',
  invoke("too-large", "echo", { text: "x".repeat(512 * 1024) }),
  { type: "invoke", payload: { action: prefix + "echo", input: { n: 1 } } },
  { type: "list_actions" },
];

const child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const seen = { byId: {}, anonymous: [], exit: null };
let count = 0;
let rest = "";

function take(line) {
  const response = JSON.parse(line);
  if (typeof response.ok !== "boolean") throw new Error(`no response: ${line}`);
  if (response.id === undefined) seen.anonymous.push(response);
  else if (seen.byId[response.id]) throw new Error(`two responses to ${response.id}`);
  else seen.byId[response.id] = response;
  if (++count === script.length) child.stdin.end();
}

child.stdout.setEncoding("utf8");
child.stdout.on("data", (text) => {
  const lines = (rest + text).split("\n");
  rest = lines.pop();
  lines.forEach(take);
});
child.on("close", (code) => {
  if (rest !== "" || count !== script.length) throw new Error(`${count} of ${script.length} responses, then ${rest}`);
  seen.exit = code;
  console.log(JSON.stringify(seen));
});
for (const request of script) {
  child.stdin.write((typeof request === "string" ? request : JSON.stringify(request)) + "\n");
}
