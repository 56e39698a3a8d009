package config

import "fmt"

func (l *loader) limits(n *node) {
	l.object(n, fields{
		"default": l.defaultLimit,
		"rules":   func(n *node) { l.list(n, l.limitRule) },
	})
}

// defaultLimit reads "60/1m", {"rate": "60/1m", "burst": 10} or "off".
func (l *loader) defaultLimit(n *node) {
	if n.kind == kindString && n.text == "off" {
		l.cfg.Limits.Default = nil
		return
	}
	var r Rate
	if n.kind != kindObject {
		l.rate(&r)(n)
	} else {
		burst := 0
		l.object(n, fields{"rate": l.rate(&r), "burst": l.count(&burst)})
		l.require(n, "rate", `such as "60/1m"`)
		r = r.withBurst(burst)
	}
	l.cfg.Limits.Default = &r
}

func (l *loader) limitRule(n *node) {
	var r LimitRule
	burst := 0
	l.object(n, fields{
		"tool":      l.filledTo(&r.Tool),
		"role":      l.filledTo(&r.Role),
		"server":    l.filledTo(&r.Server),
		"principal": l.filledTo(&r.Principal),
		"rate":      l.rate(&r.Rate),
		"burst":     l.count(&burst),
	})
	l.require(n, "rate", `such as "10/1m"`)
	if at := n.get("server"); r.Server != "" && l.servers != nil && l.servers.get(r.Server) == nil {
		l.warn(at, fmt.Sprintf("no server is named %q: the rule limits nothing", clip(at.text)), "")
	}
	r.Rate = r.Rate.withBurst(burst)
	l.cfg.Limits.Rules = append(l.cfg.Limits.Rules, r)
}

// withBurst sets a configured burst; 0 is none.
func (r Rate) withBurst(burst int) Rate {
	if burst > 0 {
		r.Burst = burst
	}
	return r
}

func (l *loader) rate(to *Rate) func(*node) {
	return func(n *node) {
		s, ok := l.text(n)
		if !ok {
			return
		}
		r, err := ParseRate(s)
		if err != nil {
			l.fault(n, fmt.Sprintf("%q is no rate", clip(n.text)), `write COUNT/DURATION, such as "10/1m"`)
			return
		}
		*to = r
	}
}
