// An OpenID provider for tests: node provider.mjs PORT REDIRECT. Whoever signs in
// there is who they say, with any password; ann and amy are approvers. It tells the
// console at REDIRECT who signs out.
import Provider from 'oidc-provider';

const [port, redirect] = process.argv.slice(2);
const approvers = ['ann', 'amy'];

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'toolgate', client_secret: 'provider-secret', redirect_uris: [redirect],
    backchannel_logout_uri: new URL('/console/backchannel-logout', redirect).href, backchannel_logout_session_required: true,
    post_logout_redirect_uris: [new URL('/console/login', redirect).href],
  }],
  features: { backchannelLogout: { enabled: true } },
  // Without its dispatcher, which refuses loopback, and its deadline.
  fetch: (url, { dispatcher, signal, ...options }) => fetch(url, options),
  claims: { openid: ['sub', 'roles'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['for tests'] },
  pkce: { required: () => true },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, roles: approvers.includes(id) ? ['approver'] : [] }),
  }),
});
provider.on('backchannel.error', (_, err) => console.error(err));
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));
