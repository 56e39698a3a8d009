// An issuer of JWT access tokens for tests: node issuer.mjs PORT AUDIENCE CLIENTS.
// CLIENTS is JSON: for each client id the claims that its tokens get. Any of them gets a
// token with grant_type=client_credentials and the secret "client-secret", or, if it has
// jwks, an assertion that one of these keys has signed.
import Provider from 'oidc-provider';

const [port, audience, clients] = process.argv.slice(2);
const claims = JSON.parse(clients);

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: Object.entries(claims).map(([id, { jwks }]) => ({
    ...(jwks ? { jwks, token_endpoint_auth_method: 'private_key_jwt' } : { client_secret: 'client-secret' }),
    client_id: id, grant_types: ['client_credentials'], redirect_uris: [], response_types: [],
  })),
  cookies: { keys: ['for tests'] },
  extraTokenClaims: (_, token) => ({ ...claims[token.clientId], jwks: undefined }),
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => audience,
      getResourceServerInfo: () => ({ scope: '', audience, accessTokenFormat: 'jwt', accessTokenTTL: 600 }),
    },
  },
});
provider.listen(Number(port), '127.0.0.1', () => console.log('listening'));
