package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/registry/config"
)

func tokenCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use: "token", Short: "make and list bearer tokens",
	}
	return group(c, tokenCreate(e), tokenList(e))
}

func tokenCreate(e *env) *cobra.Command {
	var subject string
	var roles []string
	c := &cobra.Command{
		Use: "create", Short: "make a token", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if subject == "" || subject == "local" || len(roles) == 0 || slices.Contains(roles, "") {
				return usage(errors.New("a token needs a subject, other than local, and roles\nhint: --subject agent-7 --roles researcher"))
			}
			token := "tg_" + rand.Text()
			entry := config.Token{Subject: subject, Roles: roles, SHA256: identity.HashToken(token)}
			if e.output == "json" {
				return e.json(map[string]any{"token": token, "entry": entry})
			}
			text := fmt.Sprintf("token: %s\n\nThis is the only time that it is shown. Put this under toolgate.identity.tokens:\n\n", token)
			return errors.Join(e.write(text), e.json(entry))
		},
	}
	c.Flags().StringVar(&subject, "subject", "", "subject that the token identifies")
	c.Flags().StringSliceVar(&roles, "roles", nil, "roles, separated by commas")
	return c
}

func tokenList(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "list the configured tokens", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := e.load()
			if err != nil {
				return err
			}
			return e.print("tokens", append([]config.Token{}, cfg.Identity.Tokens...))
		},
	}
}
