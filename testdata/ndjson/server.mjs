// The NDJSON action protocol, server side, in plain Node: a second reading of
// the specification, independent of the Go code. One request per line on stdin,
// one response per line on stdout, everything else on stderr.
const MAX_LINE = 512 * 1024;
const NOTICE = "Non-clinical support; must provide escalation cues when risk is elevated";
const RISKS = ["low", "medium", "high"];

// An action throws a string to refuse its input, an Error when it fails.
const actions = {
  supportive_reply: {
    description: "Replies supportively to a message",
    boundaryNotice: NOTICE,
    inputSchema: {
      type: "object",
      properties: { message: { type: "string" }, risk_level: { enum: RISKS } },
      required: ["message"],
    },
    outputSchema: {
      type: "object",
      properties: {
        reply: { type: "string" },
        escalation_guidance: { type: "array", items: { type: "string" } },
        boundaries_notice: { type: "string" },
      },
      required: ["reply", "escalation_guidance", "boundaries_notice"],
    },
    run({ message, risk_level: risk = "low" }) {
      if (typeof message !== "string" || message === "") throw "Required field 'message' is missing or empty";
      if (!RISKS.includes(risk)) throw `Field 'risk_level' must be one of ${RISKS.join(", ")}`;
      return {
        uncertainty: risk,
        assumptions: [`Risk level: ${risk} (self-reported or system-assessed)`],
        output: {
          reply: "I hear you, and I am glad you reached out...",
          escalation_guidance:
            risk === "low"
              ? []
              : ["If things feel harder over time, consider speaking with a mental health professional"],
          boundaries_notice: "Non-clinical support...",
        },
      };
    },
  },
  echo: {
    description: "Gives back its input",
    boundaryNotice: "Repeats what it is told",
    inputSchema: { type: "object" },
    run: (input) => ({ uncertainty: "low", assumptions: [], output: input }),
  },
  fail: {
    description: "Fails",
    boundaryNotice: "Never does anything",
    inputSchema: { type: "object" },
    run() {
      throw new Error("this action always fails");
    },
  },
};

const isObject = (v) => typeof v === "object" && v !== null && !Array.isArray(v);
const respond = (id, rest) => process.stdout.write(JSON.stringify({ ...(id !== undefined && { id }), ...rest }) + "\n");
const refuse = (id, error, issues) => respond(id, { ok: false, error, ...(issues && { issues }) });

function serve(line) {
  let request;
  try {
    request = JSON.parse(line);
  } catch {
    return refuse(undefined, "Malformed JSON request");
  }
  const id = isObject(request) && typeof request.id === "string" ? request.id : undefined;
  const known = isObject(request) && ["list_actions", "invoke"].includes(request.type);
  if (!known || ("id" in request && id === undefined)) return refuse(id, "Invalid request envelope");
  if (request.type === "invoke") return invoke(id, request.payload);
  const list = Object.entries(actions).map(([action, { run, ...contract }]) => ({ action, ...contract }));
  respond(id, { ok: true, data: { actions: list } });
}

function invoke(id, payload) {
  const issue = (path, got) => ({
    code: "invalid_type",
    message: got === undefined ? "Required" : "Wrong type",
    path,
  });
  if (!isObject(payload)) return refuse(id, "Invalid invoke payload", [issue([], payload)]);
  const { action, input = {} } = payload;
  if (typeof action !== "string") return refuse(id, "Invalid invoke payload", [issue(["action"], action)]);
  if (!isObject(input)) return refuse(id, "Invalid invoke payload", [issue(["input"], input)]);
  if (!Object.hasOwn(actions, action)) return refuse(id, `Unknown action: '${action}'`);
  const { boundaryNotice, run } = actions[action];
  try {
    respond(id, { ok: true, data: { action, boundaryNotice, ...run(input) } });
  } catch (reason) {
    if (reason instanceof Error) return refuse(id, reason.message);
    refuse(id, `Input validation failed for action '${action}': ${reason}`);
  }
}

console.error("ndjson server ready");
let held = []; // parts of a line that has not ended
let size = 0;
process.stdin.on("data", (chunk) => {
  for (let from = 0; ; ) {
    const end = chunk.indexOf(10, from);
    const part = chunk.subarray(from, end < 0 ? undefined : end);
    if ((size += part.length) <= MAX_LINE) held.push(part);
    if (end < 0) return;
    const line = Buffer.concat(held).toString();
    if (size > MAX_LINE) refuse(undefined, "Request exceeds maximum size (512 KB)");
    else if (line.trim() !== "") serve(line);
    held = [];
    size = 0;
    from = end + 1;
  }
});
