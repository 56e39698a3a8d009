// A TypeScript client that knows an address alone: node authorize.mjs MAJOR URL REDIRECT
// CLIENT. Without a CLIENT it registers itself.
// Each line of standard input is the name of a tool to call, or "spoil": the access token
// is lost. It prints one JSON object a line: {"open": address} for a page that a person
// has to open, after which it reads the query with which the page comes back; {"result":
// …, "token": …, "refresh": …} or {"error": …} for each call.
import { createInterface } from 'node:readline';

const [major, url, redirect, known] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = major === '1'
  ? { ...await import('@modelcontextprotocol/sdk/client/index.js'), ...await import('@modelcontextprotocol/sdk/client/streamableHttp.js'), ...await import('@modelcontextprotocol/sdk/client/auth.js') }
  : await import('@modelcontextprotocol/client');

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (value) => console.log(JSON.stringify(value));
const kept = known ? { client: { client_id: known, token_endpoint_auth_method: 'none' } } : {};
const provider = {
  redirectUrl: redirect,
  clientMetadata: { client_name: `typescript ${major}`, redirect_uris: [redirect], grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'none' },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => { kept.client = client; },
  tokens: () => kept.tokens,
  saveTokens: (tokens) => { kept.tokens = tokens; },
  redirectToAuthorization: (address) => say({ open: String(address) }),
  saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
  codeVerifier: () => kept.verifier,
  saveDiscoveryState: (state) => { kept.discovery = state; },
  discoveryState: () => kept.discovery,
  invalidateCredentials: (scope) => { if (scope === 'tokens' || scope === 'all') delete kept.tokens; },
};

let client, transport;
async function connect() {
  client = new Client({ name: 'typescript', version: major }, { capabilities: {} });
  transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
  await client.connect(transport);
}

// withPerson repeats an act after a person has signed in or granted more.
async function withPerson(act) {
  for (let n = 0; n < 3; n++) {
    try {
      return await act();
    } catch (error) {
      if (!(error instanceof UnauthorizedError)) throw error;
      const back = new URLSearchParams((await lines.next()).value);
      await transport.finishAuth(back.get('code'), back.get('iss') ?? undefined);
    }
  }
  throw new Error('asked for a person three times');
}

await withPerson(connect);
for (let line = await lines.next(); !line.done; line = await lines.next()) {
  if (line.value === 'spoil') { // the refresh token is left
    kept.tokens.access_token = kept.tokens.access_token.slice(0, -8) + 'AAAAAAAA';
    continue;
  }
  try {
    const result = await withPerson(() => client.callTool({ name: line.value, arguments: {} }));
    say({ result, scope: kept.tokens.scope, token: kept.tokens.access_token, refresh: kept.tokens.refresh_token });
  } catch (error) {
    say({ error: String(error) });
  }
}
process.exit(0);
