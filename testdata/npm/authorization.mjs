// An authorization server for tests: node authorization.mjs PORT SECONDS [DOCUMENTS]. It knows the clients
// known, refreshing, toolgate and proxy, and others register themselves; everybody signs in with any password,
// and the access tokens are JWTs for the resource that the client names (RFC 8707): the first
// one of a sign-in is valid for SECONDS, a refreshed one for 30. With DOCUMENTS clients can have
// metadata documents, wherever their addresses are: it asks for their paths there.
import Provider from 'oidc-provider';

const [port, seconds, documents] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const scopes = ['payments', 'media'];

const known = (id, grants, path = '/callback') => ({ client_id: id, application_type: 'native', redirect_uris: [`http://127.0.0.1${path}`], grant_types: grants, response_types: ['code'], token_endpoint_auth_method: 'none' });

const provider = new Provider(issuer, {
  clients: [known('known', ['authorization_code']), known('refreshing', ['authorization_code', 'refresh_token']),
    known('proxy', ['authorization_code', 'refresh_token'], '/auth/callback'),
    known('toolgate', ['authorization_code', 'refresh_token'], '/connections/callback')],
  claims: { openid: ['sub'] },
  cookies: { keys: ['for tests'] },
  scopes: ['openid', 'offline_access', ...scopes],
  pkce: { required: () => true },
  clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post'],
  clientDefaults: { token_endpoint_auth_method: 'none' },
  rotateRefreshToken: true,
  issueRefreshToken: async (_, client) => client.grantTypeAllowed('refresh_token'),
  ...(documents && { fetch: (url, { dispatcher, signal, ...options }) => fetch(new URL(new URL(url).pathname, documents), options) }),
  features: {
    clientIdMetadataDocument: { enabled: Boolean(documents), ack: 'draft-02' },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (ctx, resource) => ({
        scope: scopes.join(' '), audience: resource, accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } },
        accessTokenTTL: ctx.oidc.params.grant_type === 'refresh_token' ? 30 : Number(seconds),
      }),
      useGrantedResource: () => true,
    },
  },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
});
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));
