package identity_test

import (
	"strings"
	"testing"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/identity"
)

// TestWorkloadTokens holds the recipes of docs/identity.md against tokens with all the members that
// Kubernetes (projected service account tokens), GitHub Actions and GitLab CI put into theirs.
func TestWorkloadTokens(t *testing.T) {
	p := newIDP(t)
	at, none := clock.Unix(), map[string]any{"roles": nil}
	with := func(claims map[string]any, change map[string]any) map[string]any {
		all := p.claims(none)
		for _, more := range []map[string]any{claims, change} {
			for name, value := range more {
				if all[name] = value; value == nil {
					delete(all, name)
				}
			}
		}
		return all
	}
	kubernetes := map[string]any{
		"aud": []string{gate + "/mcp"}, "exp": at + 3607, "iat": at, "nbf": at, "jti": "0b7a4c1e-6c1c-4a0b-9c1e-2f3a4b5c6d7e",
		"kubernetes.io": map[string]any{
			"namespace":      "agents",
			"node":           map[string]any{"name": "node-1", "uid": "5f1c3c1a-7f0e-4a8e-a1fd-0d4b7a2c9e11"},
			"pod":            map[string]any{"name": "researcher-7d9f", "uid": "3a9a8f6e-54b4-4a7e-8f1f-8a3c2b1d0e99"},
			"serviceaccount": map[string]any{"name": "researcher", "uid": "c0ffee00-1b2c-4d3e-8f4a-5b6c7d8e9f00"},
			"warnafter":      at + 3000,
		},
		"sub": "system:serviceaccount:agents:researcher",
	}
	github := map[string]any{
		"jti": "6a1b", "sub": "repo:example/research:ref:refs/heads/main", "aud": gate + "/mcp", "ref": "refs/heads/main", "sha": strings.Repeat("a", 40),
		"repository": "example/research", "repository_owner": "example", "repository_owner_id": "65", "run_id": "1", "run_number": "10", "run_attempt": "2",
		"repository_visibility": "private", "repository_id": "74", "actor_id": "12", "actor": "ann", "workflow": "nightly", "head_ref": "", "base_ref": "",
		"event_name": "schedule", "ref_protected": "true", "ref_type": "branch", "workflow_ref": "example/research/.github/workflows/nightly.yml@refs/heads/main",
		"workflow_sha": strings.Repeat("a", 40), "job_workflow_ref": "example/research/.github/workflows/nightly.yml@refs/heads/main", "job_workflow_sha": strings.Repeat("a", 40),
		"runner_environment": "github-hosted", "enterprise": "", "nbf": at - 300, "iat": at, "exp": at + 300,
	}
	gitlab := map[string]any{
		"namespace_id": "72", "namespace_path": "example", "project_id": "20", "project_path": "example/research", "user_id": "1", "user_login": "ann",
		"user_email": "ann@example.org", "user_access_level": "developer", "user_identities": []any{map[string]any{"provider": "github", "extern_uid": "2435223452345"}},
		"pipeline_id": "574", "pipeline_source": "push", "job_id": "302", "ref": "main", "ref_type": "branch", "ref_path": "refs/heads/main", "ref_protected": "true",
		"groups_direct": []string{"example", "example/agents"}, "environment": "production", "environment_protected": "false", "deployment_tier": "production",
		"runner_id": 1, "runner_environment": "self-hosted", "sha": strings.Repeat("a", 40), "project_visibility": "private", "ci_config_sha": strings.Repeat("a", 40),
		"jti": "235b3a54-b797-45c7-ae9a-f72d7bc6ef5b", "iat": at, "nbf": at - 5, "exp": at + 3600,
		"sub": "project_path:example/research:ref_type:branch:ref:main", "aud": gate + "/mcp",
	}
	for name, tt := range map[string]struct {
		names                   *strings.Replacer // of those in the document
		claims                  map[string]any
		subject, person, tenant string
		change                  map[string]any // of a token that has no roles, another workload's
	}{
		"Kubernetes": {
			strings.NewReplacer("NAMESPACE:NAME", "agents:researcher"),
			kubernetes, "system:serviceaccount:agents:researcher", "", "", map[string]any{"sub": "system:serviceaccount:agents:other"},
		},
		"GitHub Actions": {
			strings.NewReplacer("OWNER/NAME", "example/research"),
			github, "repo:example/research:ref:refs/heads/main", "ann", "example", map[string]any{"sub": "repo:example/research:pull_request"},
		},
		"GitLab CI": {
			strings.NewReplacer("GROUP/NAME", "example/research"),
			gitlab, "project_path:example/research:ref_type:branch:ref:main", "ann@example.org", "example", map[string]any{"project_path": "example/other"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			config, recipe := resources(p), workload(t, name, tt.names)
			recipe.Issuer, recipe.JWKS = p.URL, p.URL+"/keys"
			config.JWT = []identity.JWT{recipe}
			a := authenticator(t, config)
			show := func(change map[string]any) (policy.Principal, error) {
				token := sign(t, jose.RS256, p.rsa, "rsa", with(tt.claims, change))
				return a.Identify(t.Context(), identity.Credential{Bearer: token, At: identity.Resource{Door: "/mcp"}})
			}
			who, err := show(nil)
			if err != nil || who.Subject != tt.subject || who.Person != tt.person || who.Tenant != tt.tenant || len(who.Roles) != 1 || who.Roles[0] != "researcher" {
				t.Errorf("%+v, %v", who, err)
			}
			if who, err := show(tt.change); err != nil || len(who.Roles) > 0 {
				t.Errorf("another workload's: %+v, %v; want no roles", who, err)
			}
			for audience, want := range map[any]identity.Kind{"https://kubernetes.default.svc": identity.Audience, "https://github.com/example": identity.Audience, nil: identity.Audience} {
				if _, err := show(map[string]any{"aud": audience}); identity.KindOf(err) != want {
					t.Errorf("for the audience %v: %v", audience, err)
				}
			}
			if _, err := show(map[string]any{"exp": at - 1}); identity.KindOf(err) != identity.Expiry {
				t.Errorf("expired: %v", err)
			}
		})
	}
}
