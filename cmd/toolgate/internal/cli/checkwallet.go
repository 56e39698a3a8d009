package cli

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/policy/fact"
	"github.com/toolgate/toolgate/policy/rego"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/tools/chain"
)

// backendFindings warns of files of backends that cannot be read, and of wallets that pay
// by other decimals or addresses than those by which the policy judges.
func (e *env) backendFindings(cfg *config.Config, engine *rego.Engine) (found []finding) {
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		started := toolsFlagsOf(s)
		if s.Disabled || started.backends == "" {
			continue
		}
		path := started.backends
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.Dir, path)
		}
		getenv := func(name string) (string, bool) {
			if v, ok := s.Env[name]; ok {
				return v, true
			}
			return e.lookup(name)
		}
		if err := config.LoadBackends(config.Options{Path: path, Getenv: getenv}, &started.Backends); err != nil {
			for _, f := range faultsOf(err, "") {
				f.Level, f.Code = levelWarning, "backends"
				found = append(found, f)
			}
			continue
		}
		tool := s.Prefix + "manage_wallet"
		if facts := engine.Facts(tool); facts != nil && started.Backends.OnChain() {
			found = append(found, compareWallet(started.Backends.Wallet, facts, "mcpServers."+s.Name, started.backends, "data.facts."+tool)...)
		}
	}
	return found
}

// walletComparison finds differences between a wallet and the facts of its calls.
type walletComparison struct {
	where, file, data string // the server, its file of backends, and the data that declares the facts
	found             []finding
}

// compareWallet compares the wallet of a file of backends with the facts that data declares.
func compareWallet(w *chain.Options, facts *fact.Set, where, file, data string) []finding {
	c := walletComparison{where: where, file: file, data: data}
	if d := facts.Declared("amount"); d.Kind == fact.Amount {
		c.decimals(w.Decimals(), d.Decimals)
	}
	if d := facts.Declared("asset"); d.Kind == fact.Label {
		for _, symbol := range slices.Sorted(maps.Keys(w.Tokens)) {
			c.address("asset.labels", symbol, w.Tokens[symbol].Address, d.Labels[symbol])
		}
	}
	if d := facts.Declared("destination"); d.Kind == fact.Label {
		c.book(w.Recipients, d.Labels)
	}
	return c.found
}

func (c *walletComparison) warn(hint, format string, args ...any) {
	c.found = append(c.found, finding{Level: levelWarning, Code: "wallet-policy", Where: c.where, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// decimals compares assets. One that the policy alone has is a note, since no wallet pays it.
func (c *walletComparison) decimals(paid, judged map[string]int) {
	at := c.data + ".amount.decimals"
	for _, asset := range slices.Sorted(maps.Keys(paid)) {
		switch n, ok := judged[asset]; {
		case !ok:
			c.warn(fmt.Sprintf("add \"%s\": %d to %s", asset, paid[asset], at), "asset %s of %s has no decimals in the policy, which reads no amount of it", asset, c.file)
		case n != paid[asset]:
			c.warn("state the decimals of the contract in both", "asset %s has %d decimals in %s and %d in %s: the wallet pays another amount than the policy judges", asset, paid[asset], c.file, n, at)
		}
	}
	var unpaid []string
	for _, asset := range slices.Sorted(maps.Keys(judged)) {
		if _, ok := paid[asset]; !ok {
			unpaid = append(unpaid, asset)
		}
	}
	if unpaid != nil {
		c.warn("remove what is not paid elsewhere, or add it to wallet.tokens", "assets of %s that %s does not pay: %s", at, c.file, strings.Join(unpaid, ", "))
		c.found[len(c.found)-1].Level = levelNote
	}
}

// book compares the recipients.
func (c *walletComparison) book(paid map[string]string, judged map[string][]string) {
	at := c.data + ".destination.labels"
	for _, name := range slices.Sorted(maps.Keys(paid)) {
		if _, ok := judged[name]; !ok {
			c.warn(fmt.Sprintf("add \"%s\": [\"%s\"] to %s", name, paid[name], at), "recipient %s of %s is no label of the policy: its address is an unknown recipient", name, c.file)
		}
		c.address("destination.labels", name, paid[name], judged[name])
	}
	for _, name := range slices.Sorted(maps.Keys(judged)) {
		if _, ok := paid[name]; !ok {
			c.warn("add it to wallet.recipients, or remove the label", "label %s of %s is no recipient of %s", name, at, c.file)
		}
	}
}

// address compares what one label means, where both say so.
func (c *walletComparison) address(member, label, paid string, judged []string) {
	if len(judged) > 0 && !slices.Contains(judged, paid) {
		c.warn("state the right address in both", "%s is %s in %s and %s in %s.%s", label, paid, c.file, strings.Join(judged, ", "), c.data, member)
	}
}
