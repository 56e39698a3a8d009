package app

import (
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/registry/config"
)

// ClientResults returns, by name, how clients get results in place of the setting.
func ClientResults(cfg *config.Config) map[string]string {
	found := map[string]string{}
	for _, p := range clientProfiles(cfg) {
		if p.Results != "" {
			found[p.Name] = p.Results
		}
	}
	return found
}

// RuleLabel returns the label of a limit.
func RuleLabel(rule string) string { return ruleLabel(rule) }

var metricDesc = regexp.MustCompile(`fqName: "(toolgate_\w+)".*variableLabels: \{([\w,]*)\}`)

// MetricLabels returns the labels of toolgate's own metrics by their names, those without
// a series included.
func (a *App) MetricLabels() map[string][]string {
	descs := make(chan *prometheus.Desc)
	go func() { a.metrics.registry.Describe(descs); close(descs) }()
	found := make(map[string][]string)
	for d := range descs {
		if m := metricDesc.FindStringSubmatch(d.String()); m != nil {
			found[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' })
		}
	}
	return found
}

// ReleaseMemory is releaseMemory.
var ReleaseMemory = releaseMemory

// ReleaseProgram is releaseProgram.
var ReleaseProgram = releaseProgram

// GroupMemory returns the memory limit that a process sees in root.
var GroupMemory = groupMemory

// Served is served.
var Served = served

// ServedPolicies is servedPolicies.
func (a *App) ServedPolicies() []console.ServedPolicy { return a.inventory.policies() }
