package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/registry/config"
)

// backends stands for the struct of package tools, which has the same tags; a test there
// compares them with the schema.
type backends struct {
	Search *struct {
		Provider string        `json:"provider"`
		APIKey   string        `json:"api_key"`
		Locale   string        `json:"locale"`
		Folder   string        `json:"folder"`
		Timeout  time.Duration `json:"timeout"`
		Cache    time.Duration `json:"cache"`
	} `json:"search"`
	Fetch *struct {
		Allow []string `json:"allow"`
	} `json:"fetch"`
	Media *struct {
		Models map[string]struct {
			ID    string            `json:"id"`
			Cost  float64           `json:"cost"`
			Sizes map[string]string `json:"sizes"`
		} `json:"models"`
		Budget float64 `json:"budget"`
	} `json:"media"`
	Wallet *struct {
		URL     string `json:"rpc_url"`
		ChainID uint64 `json:"chain_id"`
		Tokens  map[string]struct {
			Decimals int `json:"decimals"`
		} `json:"tokens"`
		Recipients map[string]string `json:"recipients"`
		Signer     struct {
			Keystore   string   `json:"keystore"`
			Password   string   `json:"password"`
			PrivateKey string   `json:"private_key"`
			Command    []string `json:"command"`
		} `json:"signer"`
		Wait time.Duration `json:"wait"`
	} `json:"wallet"`
}

func readBackends(text string) (backends, error) {
	opts := inMemory(map[string]string{"/etc/toolgate/backends.json": text})
	opts.Path = "/etc/toolgate/backends.json"
	opts.Getenv = lookup("KEY=sk-very-secret\nBAD=sk-very\tsecret")
	var b backends
	err := config.LoadBackends(opts, &b)
	return b, err
}

func TestLoadBackends(t *testing.T) {
	got, err := readBackends(`{
		// comments and trailing commas
		"$schema": "backends.json",
		"search": {"provider": "brave", "api_key": "${KEY}", "locale": "en-GB", "safesearch": "moderate", "freshness": "month", "timeout": "10s", "cache": "5m",},
		"fetch": {"allow": ["intranet:8080"]},
	}`)
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Search; s.Provider != "brave" || s.APIKey != "sk-very-secret" || s.Locale != "en-GB" || s.Timeout != 10*time.Second || s.Cache != 5*time.Minute {
		t.Errorf("search is %+v", s)
	}
	if diff := cmp.Diff([]string{"intranet:8080"}, got.Fetch.Allow); diff != "" {
		t.Error(diff)
	}
	if got, err = readBackends(`{"search": {"provider": "local", "folder": "docs"}}`); err != nil || got.Search.Folder != "/etc/toolgate/docs" || got.Fetch != nil {
		t.Errorf("%+v, %v", got.Search, err)
	}
	got, err = readBackends(`{"media": {"provider": "openai", "models": {"fox": {"id": "gpt-image-1", "cost": 0.04, "sizes": {"1:1": "512x512"}}}, "budget": 2.5}}`)
	if err != nil || got.Media.Budget != 2.5 || got.Media.Models["fox"].ID != "gpt-image-1" || got.Media.Models["fox"].Cost != 0.04 || got.Media.Models["fox"].Sizes["1:1"] != "512x512" {
		t.Errorf("%+v, %v", got.Media, err)
	}
	wallet := `{"wallet": {"provider": "evm", "rpc_url": "http://127.0.0.1:8545", "chain_id": 1337, "wait": "5s", "tokens": {"USDT": {"address": "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "decimals": 6}},
		"recipients": {"acme": "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"}, "signer": {"keystore": "key.json", "password": "${KEY}"}}}`
	if got, err = readBackends(wallet); err != nil || got.Wallet.Signer.Keystore != "/etc/toolgate/key.json" || got.Wallet.Signer.Password != "sk-very-secret" ||
		got.Wallet.ChainID != 1337 || got.Wallet.Tokens["USDT"].Decimals != 6 || got.Wallet.Recipients["acme"] == "" || got.Wallet.Wait != 5*time.Second {
		t.Errorf("%+v, %v", got.Wallet, err)
	}
	if got, err = readBackends(`{}`); err != nil || got != (backends{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func evm(signer string) string {
	return `{"wallet": {"provider": "evm", "rpc_url": "http://127.0.0.1:1", "chain_id": 1337, "signer": {` + signer + `}}}`
}

func TestLoadBackendsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"serach": {}}`: "/etc/toolgate/backends.json:1:2: serach: unknown key\nhint: did you mean \"search\"?",
		`{"search": {}}`: `1:12: search: missing key "provider"`,
		`{"search": {"provider": "barve", "api_key": "${KEY}"}}`:                                                                  `invalid value "barve"`,
		`{"search": {"provider": "brave"}}`:                                                                                       `missing key "api_key"`,
		`{"search": {"provider": "exa"}}`:                                                                                         `missing key "api_key"`,
		`{"search": {"provider": "tavily"}}`:                                                                                      `missing key "api_key"`,
		`{"search": {"provider": "searxng"}}`:                                                                                     `missing key "base_url"`,
		`{"search": {"provider": "wikipedia"}}`:                                                                                   `missing key "contact"`,
		`{"search": {"provider": "brave", "api_key": "sk-plain-secret"}}`:                                                         "1:45: search.api_key: is a key in plain text\nhint: write \"${NAME}\"",
		`{"search": {"provider": "brave", "api_key": "${UNSET}"}}`:                                                                "variable UNSET is not set",
		`{"search": {"provider": "brave", "api_key": "${BAD}"}}`:                                                                  "nor contain a control character",
		`{"search": {"provider": "brave", "api_key": 5}}`:                                                                         "want a string, got 5",
		`{"search": {"provider": "brave", "api_key": "${KEY}", "contact": "x"}}`:                                                  "search.contact: has no effect with provider brave",
		`{"search": {"provider": "tavily", "api_key": "${KEY}", "safesearch": "off"}}`:                                            "search.safesearch: has no effect with provider tavily",
		`{"search": {"provider": "wikipedia", "contact": "x", "freshness": "day"}}`:                                               "search.freshness: has no effect with provider wikipedia",
		`{"search": {"provider": "wikipedia", "contact": "x", "locale": "english"}}`:                                              "is no language with an optional country",
		`{"search": {"provider": "local", "cache": "5m"}}`:                                                                        "search.cache: has no effect with provider local",
		`{"search": {"provider": "searxng", "base_url": "ftp://x"}}`:                                                              "not an http or https URL",
		`{"search": {"provider": "searxng", "base_url": "http://u:p@x"}}`:                                                         "URL contains a user, a query or a fragment",
		`{"search": {"provider": "searxng", "base_url": "http://x?y"}}`:                                                           "URL contains a user, a query or a fragment",
		`{"search": {"provider": "exa", "api_key": "${KEY}", "base_url": "http://x"}}`:                                            "search.base_url: would carry the key without TLS",
		`{"search": {"provider": "searxng", "base_url": "http://x", "timeout": "1ms"}}`:                                           "duration \"1ms\" is too short",
		`{"search": {"provider": "searxng", "base_url": "http://x", "timeout": 5}}`:                                               "want a string, got 5",
		`{"search": {"provider": "searxng", "base_url": "http://x", "cache": "0s"}}`:                                              "duration \"0s\" is too short",
		`{"media": {"provider": "openai"}}`:                                                                                       `missing key "models"`,
		`{"media": {"provider": "openai", "models": {}}}`:                                                                         "models",
		`{"media": {"provider": "openai", "models": {"a": {"id": "x"}}}}`:                                                         `missing key "cost"`,
		`{"media": {"provider": "openai", "models": {"a": {"id": "../x", "cost": 1}}}}`:                                           "is no name of a model",
		`{"media": {"provider": "openai", "models": {"a": {"id": "x", "cost": -1}}}}`:                                             "cost",
		`{"media": {"provider": "replicate", "models": {"a": {"id": "x/y", "cost": 0}}}}`:                                         `missing key "api_key"`,
		`{"media": {"provider": "stability", "api_key": "sk-secret", "models": {"a": {"id": "core", "cost": 0}}}}`:                "media.api_key: is a key in plain text",
		`{"media": {"provider": "openai", "api_key": "${KEY}", "base_url": "http://x", "models": {"a": {"id": "x", "cost": 0}}}}`: "media.base_url: would carry the key without TLS",
		`{"media": {"provider": "render", "budget": 1}}`:                                                                          "media.budget: has no effect with provider render\nhint: it supports no other member",
		`{"media": {"provider": "brave", "models": {}}}`:                                                                          `invalid value "brave"`,
		`{"fetch": {"allow": ["a", "a"]}}`:                                                                                        "is in the list twice",
		`{"fetch": {"deny": []}}`:                                                                                                 "unknown key",
		`{"fetch": true}`:                                                                                                         "want an object",
		`[]`:                                                                                                                      "is not an object",
		`{"search": `:                                                                                                             "ends in the middle of a value",
		`{"search": {}, "search": {}}`:                                                                                            "is written twice",
		`{"wallet": {"provider": "evm"}}`:                                                                                         `wallet: missing key`,
		`{"wallet": {"provider": "evn"}}`:                                                                                         `invalid value "evn"`,
		evm(`"private_key": "sk-very-secret"`):                                                                                    "wallet.signer.private_key: is a key in plain text",
		evm(`"private_key": "${NONE:-sk-very-secret}"`):                                                                           "wallet.signer.private_key: is a key in plain text",
		evm(`"private_key": "sk-very-secret${KEY}"`):                                                                              "wallet.signer.private_key: is a key in plain text",
		evm(`"keystore": "x", "password": "sk-very-secret"`):                                                                      "wallet.signer.password: is a key in plain text",
		evm(`"private_key": "${KEY}", "command": ["x"]`):                                                                          "wallet.signer: needs one signer",
		evm(`"keystore": "x"`):                                                                                                    "wallet.signer: needs one signer",
		evm(`"command": ["x"]`):                                                                                                   "wallet.signer: needs one signer",
		evm(``):                                                                                                                   "wallet.signer: needs one signer",
		strings.Replace(evm(`"private_key": "${KEY}"`), "http://127.0.0.1:1", "http://example.org", 1):                            "wallet.rpc_url: must be an https URL",
	} {
		_, err := readBackends(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// FuzzBackends: no file makes a panic, none is accepted with a key that is written in it, and
// no fault tells the value of a variable.
func FuzzBackends(f *testing.F) {
	for _, text := range []string{
		`{"search": {"provider": "brave", "api_key": "${KEY}"}, "fetch": {}}`, `{"search": {"provider": "local", "folder": "x"}}`,
		`{"search": {"provider": "exa", "api_key": "${KEY}", "timeout": "1h"}}`, `{"search": null}`, `{"search": {"provider": "brave", "api_key": "x"}} /* `,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := readBackends(text)
		if err != nil && strings.Contains(err.Error(), "very") && !strings.Contains(text, "very") {
			t.Errorf("a fault tells a secret: %v", err)
		}
		if err == nil && got.Search != nil && got.Search.APIKey != "" && !strings.Contains(text, "$") && !strings.Contains(text, `\u`) {
			t.Errorf("a key in plain text is accepted: %s", text)
		}
	})
}
