// Package deploy_test renders the Helm chart of docs/deploy with Helm's library and
// decodes every object as the API server of Kubernetes would. It has a module of its
// own, so that nothing of Helm or Kubernetes is in toolgate's.
package deploy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	disruption "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

const chart = "../../docs/deploy/helm/toolgate"

// values are YAML. identity is what the pod needs to be reached by others.
const identity = `
config:
  mcpServers:
    standard: { command: toolgate, args: [tools, --dir, /var/lib/toolgate-servers/tools] }
  toolgate:
    identity:
      tokens: [{ subject: agent, roles: [researcher], sha256: 1e85597643745a860ddf8fa29ac9c6287331cb3e69435d56060df71a13709316 }]
`

// render returns the objects of the chart, by kind and name.
func render(t *testing.T, values string) (map[string]runtime.Object, error) {
	t.Helper()
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	v, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(&action.Configuration{Log: t.Logf})
	install.ReleaseName, install.Namespace, install.ClientOnly, install.DryRun = "gate", "agents", true, true
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.30.0", Major: "1", Minor: "30"}
	release, err := install.Run(c, v)
	if err != nil {
		return nil, err
	}
	return decode(t, release.Manifest), nil
}

func decode(t *testing.T, manifest string) map[string]runtime.Object {
	t.Helper()
	strict := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, serializer.SerializerOptions{Yaml: true, Strict: true})
	found := map[string]runtime.Object{}
	for documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifest))); ; {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("monitoring.coreos.com")) { // no types of Kubernetes
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(text, &o.Object); err != nil {
				t.Fatal(err)
			}
			found[o.GetKind()] = o
			continue
		}
		object, kind, err := strict.Decode(text, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		name := object.(interface{ GetName() string }).GetName()
		found[kind.Kind+"/"+name] = object
	}
}

func TestLint(t *testing.T) {
	v, err := chartutil.ReadValues([]byte(identity + "insecure: true\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range lint.AllWithKubeVersion(chart, v, "agents", &chartutil.KubeVersion{Version: "v1.30.0", Major: "1", Minor: "30"}).Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// A pod that stops has the time that its configuration takes, and what comes after it.
func TestStops(t *testing.T) {
	for values, want := range map[string]struct {
		grace       int64
		delay, last string
	}{
		"":                                    {60, "5s", "20s"},
		"shutdown: { delay: 0, drain: 90 }\n": {125, "0s", "90s"},
	} {
		objects, err := render(t, identity+"insecure: true\n"+values)
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Toolgate struct{ Shutdown struct{ Delay, Drain string } }
		}
		if err := json.Unmarshal([]byte(objects["ConfigMap/gate-toolgate"].(*core.ConfigMap).Data["mcp.json"]), &config); err != nil {
			t.Fatal(err)
		}
		grace, s := *objects["StatefulSet/gate-toolgate"].(*apps.StatefulSet).Spec.Template.Spec.TerminationGracePeriodSeconds, config.Toolgate.Shutdown
		if grace != want.grace || s.Delay != want.delay || s.Drain != want.last {
			t.Errorf("%q: %d s for %s and %s, want %+v", values, grace, s.Delay, s.Drain, want)
		}
	}
}

// The pod has no right that it does not need, and nothing but its volumes is written.
func TestPod(t *testing.T) {
	objects, err := render(t, identity+"tls: { secret: gate-tls }\nserviceMonitor: { enabled: true, token: { secret: scraper } }\npolicy: { configMap: rules }\n"+
		"env: [{ name: KEY, valueFrom: { secretKeyRef: { name: payments, key: key } } }]\n")
	if err != nil {
		t.Fatal(err)
	}
	set := objects["StatefulSet/gate-toolgate"].(*apps.StatefulSet)
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	if *set.Spec.Replicas != 1 || len(set.Spec.VolumeClaimTemplates) != 3 {
		t.Errorf("%d replicas with %d volumes", *set.Spec.Replicas, len(set.Spec.VolumeClaimTemplates))
	}
	if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" {
		t.Errorf("the container may do too much: %v", s)
	}
	if s := pod.SecurityContext; !*s.RunAsNonRoot || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault || *pod.AutomountServiceAccountToken {
		t.Errorf("the pod may do too much: %v", s)
	}
	for _, p := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p.HTTPGet.Scheme != core.URISchemeHTTPS || p.HTTPGet.Port.StrVal != "admin" {
			t.Errorf("a probe asks %v", p.HTTPGet)
		}
	}
	mounted := map[string]bool{}
	for _, m := range c.VolumeMounts {
		mounted[m.Name] = true
	}
	for _, v := range append(volumeNames(pod.Volumes), claimNames(set.Spec.VolumeClaimTemplates)...) {
		if !mounted[v] {
			t.Errorf("volume %s is not mounted", v)
		}
		delete(mounted, v)
	}
	if len(mounted) > 0 {
		t.Errorf("mounts without a volume: %v", mounted)
	}
	if _, ok := objects["ServiceMonitor"]; !ok {
		t.Error("no ServiceMonitor")
	}
	for name := range objects {
		if strings.HasPrefix(name, "Secret/") {
			t.Errorf("the chart holds %s", name)
		}
	}
}

func volumeNames(volumes []core.Volume) (names []string) {
	for _, v := range volumes {
		names = append(names, v.Name)
	}
	return names
}

func claimNames(claims []core.PersistentVolumeClaim) (names []string) {
	for _, c := range claims {
		names = append(names, c.Name)
	}
	return names
}

// Replicas have the URLs of what they share from secrets, one key directory, and each its
// own trail. A client stays at one of them, and only one is disturbed at a time.
func TestReplicas(t *testing.T) {
	objects, err := render(t, identity+"insecure: true\nreplicas: 3\nstore: { secret: db }\nshared: { secret: limits, key: address }\nkeys: { claim: keys }\n")
	if err != nil {
		t.Fatal(err)
	}
	set := objects["StatefulSet/gate-toolgate"].(*apps.StatefulSet)
	if names := strings.Join(claimNames(set.Spec.VolumeClaimTemplates), " "); *set.Spec.Replicas != 3 || names != "servers state" {
		t.Errorf("%d replicas with volumes %s", *set.Spec.Replicas, names)
	}
	from := map[string]string{}
	for _, e := range set.Spec.Template.Spec.Containers[0].Env {
		from[e.Name] = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
	}
	if from["STORE_URL"] != "db/url" || from["SHARED_URL"] != "limits/address" {
		t.Errorf("variables from %v", from)
	}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.Name == "keys" && v.PersistentVolumeClaim.ClaimName != "keys" {
			t.Errorf("keys from %v", v.VolumeSource)
		}
	}
	text := objects["ConfigMap/gate-toolgate"].(*core.ConfigMap).Data["mcp.json"]
	if !strings.Contains(text, `"store": "${STORE_URL}"`) || !strings.Contains(text, `"url": "${SHARED_URL}"`) {
		t.Errorf("the configuration is %s", text)
	}
	if s := objects["Service/gate-toolgate"].(*core.Service); s.Spec.SessionAffinity != core.ServiceAffinityClientIP {
		t.Errorf("affinity %q", s.Spec.SessionAffinity)
	}
	if b := objects["PodDisruptionBudget/gate-toolgate"].(*disruption.PodDisruptionBudget); b.Spec.MaxUnavailable.IntVal != 1 {
		t.Errorf("budget %v", b.Spec)
	}
	if alone, err := render(t, identity+"insecure: true\n"); err != nil || alone["PodDisruptionBudget/gate-toolgate"] != nil {
		t.Errorf("one replica has a budget, which would keep its node from being drained: %v", err)
	}
}

// With a certificate for it, replicas reach each other by the names of the headless service,
// also while they are not ready, and nobody else reaches that port. Then a client need not
// stay at one pod.
func TestSessionsAtAnyReplica(t *testing.T) {
	values := identity + "insecure: true\nreplicas: 2\nstore: { secret: db }\nkeys: { claim: keys }\nreplica: { secret: between }\n"
	if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), "replica.secret needs shared.secret") {
		t.Errorf("without a server where replicas find each other: %v", err)
	}
	objects, err := render(t, values+"shared: { secret: limits }\nnetworkPolicy: { egress: [{ ports: [{ port: 53 }] }] }\n")
	if err != nil {
		t.Fatal(err)
	}
	text := objects["ConfigMap/gate-toolgate"].(*core.ConfigMap).Data["mcp.json"]
	for _, want := range []string{`"address": "${POD_NAME}.gate-toolgate-replicas.agents.svc:8789"`, `"ca": "/etc/toolgate-replica/ca.crt"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the configuration lacks %s: %s", want, text)
		}
	}
	set, service := objects["StatefulSet/gate-toolgate"].(*apps.StatefulSet), objects["Service/gate-toolgate-replicas"].(*core.Service)
	if set.Spec.ServiceName != service.Name || service.Spec.ClusterIP != core.ClusterIPNone || !service.Spec.PublishNotReadyAddresses {
		t.Errorf("pods of service %s have no names of %v", set.Spec.ServiceName, service.Spec)
	}
	c := set.Spec.Template.Spec.Containers[0]
	if e := c.Env[len(c.Env)-1]; e.Name != "POD_NAME" || e.ValueFrom.FieldRef.FieldPath != "metadata.name" {
		t.Errorf("variable %v", e)
	}
	mounts := c.VolumeMounts
	if last := mounts[len(mounts)-1]; last.Name != "replica" || last.MountPath != "/etc/toolgate-replica" || c.Ports[len(c.Ports)-1].ContainerPort != 8789 {
		t.Errorf("mounts %v, ports %v", mounts, c.Ports)
	}
	rules := objects["NetworkPolicy/gate-toolgate"].(*network.NetworkPolicy).Spec
	in, out := rules.Ingress[len(rules.Ingress)-1], rules.Egress[len(rules.Egress)-1]
	own := set.Spec.Selector.MatchLabels
	if in.Ports[0].Port.StrVal != "replicas" || len(in.From) != 1 || !maps.Equal(in.From[0].PodSelector.MatchLabels, own) ||
		out.Ports[0].Port.StrVal != "replicas" || !maps.Equal(out.To[0].PodSelector.MatchLabels, own) {
		t.Errorf("the port is open to %v, and from %v", in, out)
	}
	if affinity := objects["Service/gate-toolgate"].(*core.Service).Spec.SessionAffinity; affinity != "" {
		t.Errorf("affinity %q", affinity)
	}
}

// Nobody reaches the people's listener unless the values name them.
func TestNetworkPolicy(t *testing.T) {
	for _, tc := range []struct {
		name, values string
		want         []string // ports that somebody may reach
	}{
		{"by default", "", []string{"agents"}},
		{"with a peer for people", "networkPolicy: { admin: [{ namespaceSelector: {} }] }\n", []string{"agents", "admin"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objects, err := render(t, identity+"insecure: true\n"+tc.values)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, rule := range objects["NetworkPolicy/gate-toolgate"].(*network.NetworkPolicy).Spec.Ingress {
				if len(rule.From) == 0 {
					t.Errorf("everybody reaches %v", rule.Ports)
				}
				got = append(got, rule.Ports[0].Port.StrVal)
			}
			if strings.Join(got, " ") != strings.Join(tc.want, " ") {
				t.Errorf("reachable are %v, want %v", got, tc.want)
			}
		})
	}
}

// Values that would serve more than they say are refused.
func TestRefused(t *testing.T) {
	for _, tc := range []struct{ name, values, want string }{
		{"neither TLS nor insecure", "", "set tls.secret, or insecure: true"},
		{"plain HTTP without a fence", "insecure: true\nnetworkPolicy: { enabled: false }\n", "has to be fenced"},
		{"a listener of one's own", "insecure: true\nconfig: { toolgate: { listen: '0.0.0.0:1' } }\n", "/config/toolgate/listen"},
		{"an unknown value", "insecure: true\nreplica: 2\n", "replica"},
		{"replicas without a database", "insecure: true\nreplicas: 2\nkeys: { claim: keys }\n", "needs store.secret and keys.claim"},
		{"replicas without the same keys", "insecure: true\nreplicas: 2\nstore: { secret: db }\n", "needs store.secret and keys.claim"},
		{"a replicas' listener of one's own", "insecure: true\nconfig: { toolgate: { replica: { listen: '0.0.0.0:1' } } }\n", "/config/toolgate/replica"},
		{"a variable in the open", "insecure: true\nenv: [{ name: KEY, value: s3cret }]\n", "/env/0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := render(t, tc.values); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// toolgate accepts the configuration that the chart writes.
func TestConfiguration(t *testing.T) {
	toolgate, err := filepath.Abs("../../bin/toolgate")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := render(t, identity+"insecure: true\nallowedHosts: [gate.example]\n")
	if err != nil {
		t.Fatal(err)
	}
	text := objects["ConfigMap/gate-toolgate"].(*core.ConfigMap).Data["mcp.json"]
	var c struct {
		Toolgate struct {
			Hosts []string `json:"allowed_hosts"`
		}
	}
	if err := json.Unmarshal([]byte(text), &c); err != nil || !strings.Contains(strings.Join(c.Toolgate.Hosts, " "), "gate-toolgate-admin.agents.svc.cluster.local gate.example") {
		t.Errorf("the hosts are %v, %v", c.Toolgate.Hosts, err)
	}
	file := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(toolgate, "check", "--config", file).CombinedOutput(); err != nil {
		t.Errorf("toolgate check: %v\n%s\n%s", err, out, text)
	}
}
