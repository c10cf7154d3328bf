//go:build chart

package charts

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/version"
)

func operator(r rendered) *appsv1.Deployment {
	return get[*appsv1.Deployment](r, "Deployment qtls-system/qtls")
}

func TestTheChartIsOfTheProgramsVersion(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("qtls", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var chart struct{ Version, AppVersion string }
	if err := yaml.Unmarshal(data, &chart); err != nil {
		t.Fatal(err)
	}
	if chart.Version != version.Version || chart.AppVersion != version.Version {
		t.Errorf("Chart.yaml says version %s, appVersion %s; internal/version says %s", chart.Version, chart.AppVersion, version.Version)
	}
}

func TestHelmLintFindsNothing(t *testing.T) {
	if out, err := helmCommand(t, "lint", "--strict", "--quiet", "--kube-version", oldest, "qtls").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestWhatIsInstalledByDefault(t *testing.T) {
	r := render(t, "")
	kinds := map[string]int{}
	for key := range r.objects {
		kind, _, _ := strings.Cut(key, " ")
		kinds[kind]++
	}
	want := map[string]int{
		"CustomResourceDefinition": 8, "Deployment": 1, "Service": 1, "ServiceAccount": 1,
		"ClusterRole":        4,                   // the operator's, the approver's, view and edit
		"ClusterRoleBinding": 2,                   // the operator's, the approver's
		"Role":               1, "RoleBinding": 1, // of the operator's own namespace
	}
	if d := cmp.Diff(want, kinds); d != "" {
		t.Error(d)
	}
}

func TestDefinitionsAreThoseOfConfig(t *testing.T) {
	r := render(t, "")
	paths, err := filepath.Glob(filepath.Join("..", "config", "crd", "*.yaml"))
	if err != nil || len(paths) != r.count("CustomResourceDefinition") {
		t.Fatalf("config/crd holds %d definitions, the chart %d (%v)", len(paths), r.count("CustomResourceDefinition"), err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var want apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		got := get[*apiextensionsv1.CustomResourceDefinition](r, "CustomResourceDefinition "+want.Name)
		if d := cmp.Diff(want.Spec, got.Spec); d != "" {
			t.Errorf("%s: %s", want.Name, d)
		}
		if got.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s would go with the release, and every gateway with it", want.Name)
		}
	}
}

// Whatever the release is called, and also where another tool has installed them.
func TestTheCommandThatRemovesTheDefinitionsFindsThem(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "config", "crd", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("config/crd: %d definitions (%v)", len(paths), err)
	}
	for _, page := range []string{filepath.Join("..", "docs", "install.md"), filepath.Join("qtls", "README.md")} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		command := regexp.MustCompile(`kubectl get crd --output=name \| grep '(.+)' \| xargs kubectl delete`).FindSubmatch(text)
		if command == nil {
			t.Fatalf("%s has no command that removes them", page)
		}
		finds := regexp.MustCompile(string(command[1]))
		for _, path := range paths {
			group, plural, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".yaml"), "_")
			if name := "customresourcedefinition.apiextensions.k8s.io/" + plural + "." + group; !finds.MatchString(name) {
				t.Errorf("%s: the command does not find %s", page, name)
			}
		}
		if name := "customresourcedefinition.apiextensions.k8s.io/certificates.cert-manager.io"; finds.MatchString(name) {
			t.Errorf("%s: the command finds %s", page, name)
		}
	}
}

func TestDefinitionsCanBeLeftOutOrGoWithTheRelease(t *testing.T) {
	if n := render(t, "crds: {install: false}").count("CustomResourceDefinition"); n != 0 {
		t.Errorf("%d definitions in spite of crds.install=false", n)
	}
	r := render(t, "crds: {keep: false}")
	d := get[*apiextensionsv1.CustomResourceDefinition](r, "CustomResourceDefinition qtlsgateways.qtls.dev")
	if v, kept := d.Annotations["helm.sh/resource-policy"]; kept {
		t.Errorf("helm.sh/resource-policy is %q in spite of crds.keep=false", v)
	}
}

// Without a limit GOMEMLIMIT would be the node's memory.
func TestTheCollectorKeepsTheOperatorBelowItsLimit(t *testing.T) {
	for values, limited := range map[string]bool{
		"": true, "resources: {limits: {memory: 1Gi}}": true, "resources: {limits: {memory: null}}": false, "resources: {limits: null}": false, "resources: null": false,
	} {
		env := operator(render(t, values)).Spec.Template.Spec.Containers[0].Env
		i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
		if i >= 0 != limited || limited && env[i].ValueFrom.ResourceFieldRef.Resource != "limits.memory" {
			t.Errorf("%q: %v", values, env)
		}
	}
}

func TestTheOperatorPodIsRestricted(t *testing.T) {
	pod := operator(render(t, "")).Spec.Template.Spec
	if pod.SecurityContext.RunAsNonRoot == nil || !*pod.SecurityContext.RunAsNonRoot ||
		pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod's security context is %v", pod.SecurityContext)
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("container %s: security context %v", c.Name, s)
		}
		if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("container %s: resources %v", c.Name, c.Resources)
		}
		if c.ReadinessProbe == nil || c.LivenessProbe == nil || c.StartupProbe == nil {
			t.Errorf("container %s lacks a probe", c.Name)
		}
	}
}

func TestArgumentsOfTheOperator(t *testing.T) {
	always := []string{
		"--leader-elect", "--namespace=$(POD_NAMESPACE)", "--gateway-image=ghcr.io/qtls-dev/qtls-gateway:" + version.Version,
		"--redis-image=ghcr.io/qtls-dev/qtls-redis:" + version.Version, "--hsm-image=ghcr.io/qtls-dev/qtls-hsm:" + version.Version,
		"--k6-image=ghcr.io/qtls-dev/qtls-k6:" + version.Version,
		"--gateway-image-pull-policy=IfNotPresent", "--metrics-bind-address=:8080", "--health-probe-bind-address=:8081", "--log-level=INFO",
	}
	for values, want := range map[string][]string{
		"":                             nil,
		"watchNamespaces: [one, two]":  {"--watch-namespaces=one,two"},
		"logLevel: DEBUG":              {"--log-level=DEBUG"},
		"gatewayImage: {tag: v2}":      {"--gateway-image=ghcr.io/qtls-dev/qtls-gateway:v2"},
		"redisImage: {tag: v3}":        {"--redis-image=ghcr.io/qtls-dev/qtls-redis:v3"},
		"hsmImage: {tag: v4}":          {"--hsm-image=ghcr.io/qtls-dev/qtls-hsm:v4"},
		"benchmarks: {enabled: false}": nil,
		"k6Image: {tag: v5}":           {"--k6-image=ghcr.io/qtls-dev/qtls-k6:v5"},
		`benchmarks: {peerImages: ["nginx:*", registry.example.com/peers/haproxy]}`: {"--peer-images=nginx:*,registry.example.com/peers/haproxy"},
		"benchmarks: {enabled: false, peerImages: [nginx]}":                         nil,
		"gatewayImage: {pullPolicy: Always, pullSecrets: [a, b]}": {
			"--gateway-image-pull-policy=Always", "--gateway-image-pull-secrets=a,b",
		},
	} {
		always := slices.Clone(always)
		got := operator(render(t, values)).Spec.Template.Spec.Containers[0].Args
		replaced := func(arg string) bool {
			name, _, _ := strings.Cut(arg, "=")
			return slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(w, name+"=") })
		}
		if strings.Contains(values, "enabled: false") { // their image says that there are some
			always = slices.DeleteFunc(always, func(arg string) bool { return strings.HasPrefix(arg, "--k6-image=") })
		}
		expected := slices.Concat(slices.DeleteFunc(slices.Clone(always), replaced), want)
		slices.Sort(expected)
		if got := slices.Sorted(slices.Values(got)); !slices.Equal(got, expected) {
			t.Errorf("%s: arguments %q, want %q", values, got, expected)
		}
	}
}

func TestImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	r := render(t, `
imageRegistry: registry.example.com/mirror
imagePullSecrets: [credentials]
image: {tag: v9, digest: "`+digest+`", pullPolicy: Always}
`)
	pod := operator(r).Spec.Template.Spec
	if got, want := pod.Containers[0].Image, "registry.example.com/mirror/qtls-operator:v9@"+digest; got != want {
		t.Errorf("image %q, want %q", got, want)
	}
	if got := pod.Containers[0].ImagePullPolicy; got != corev1.PullAlways {
		t.Errorf("pull policy %s", got)
	}
	if len(pod.ImagePullSecrets) != 1 || pod.ImagePullSecrets[0].Name != "credentials" {
		t.Errorf("pull secrets %v", pod.ImagePullSecrets)
	}
}

func TestPlacement(t *testing.T) {
	r := render(t, `
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: dedicated, operator: Exists}]
affinity: {nodeAffinity: {}}
priorityClassName: system-cluster-critical
podAnnotations: {example.com/a: b}
podLabels: {example.com/team: platform}
topologySpreadConstraints:
  - {maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}
  - {maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {team: infra}}}
`)
	d := operator(r)
	pod := d.Spec.Template.Spec
	if pod.NodeSelector["kubernetes.io/os"] != "linux" || len(pod.Tolerations) != 1 || pod.Affinity == nil || pod.PriorityClassName != "system-cluster-critical" {
		t.Errorf("placement is lost: %v", pod)
	}
	if d.Spec.Template.Annotations["example.com/a"] != "b" || d.Spec.Template.Labels["example.com/team"] != "platform" {
		t.Errorf("annotations %v, labels %v", d.Spec.Template.Annotations, d.Spec.Template.Labels)
	}
	c := pod.TopologySpreadConstraints
	if len(c) != 2 || c[0].MaxSkew != 2 || !maps.Equal(c[0].LabelSelector.MatchLabels, d.Spec.Selector.MatchLabels) {
		t.Errorf("spread %v, want the first one given with the operator's selector", c)
	} else if !maps.Equal(c[1].LabelSelector.MatchLabels, map[string]string{"team": "infra"}) {
		t.Errorf("spread %v, want the second one with its own selector alone", c[1])
	}
	if c := operator(render(t, "")).Spec.Template.Spec.TopologySpreadConstraints; len(c) != 2 {
		t.Errorf("default spread %v, want over nodes and zones", c)
	}
}

func TestSeveralOperatorsGetADisruptionBudget(t *testing.T) {
	if n := render(t, "").count("PodDisruptionBudget"); n != 0 {
		t.Error("one operator with a budget keeps its node from being drained")
	}
	r := render(t, "replicas: 3")
	budget := get[*policyv1.PodDisruptionBudget](r, "PodDisruptionBudget qtls-system/qtls")
	if d := operator(r); *d.Spec.Replicas != 3 || !maps.Equal(budget.Spec.Selector.MatchLabels, d.Spec.Selector.MatchLabels) {
		t.Errorf("%d replicas, budget over %v", *d.Spec.Replicas, budget.Spec.Selector)
	}
	if n := render(t, "{replicas: 3, podDisruptionBudget: {enabled: false}}").count("PodDisruptionBudget"); n != 0 {
		t.Error("a budget in spite of podDisruptionBudget.enabled=false")
	}
}

func TestMetrics(t *testing.T) {
	r := render(t, `
watchNamespaces: [one]
metrics:
  serviceMonitor: {enabled: true, interval: 5s, labels: {release: prometheus}}
  podMonitor: {enabled: true, interval: 7s}
`)
	service := get[*corev1.Service](r, "Service qtls-system/qtls-metrics")
	if pod := operator(r).Spec.Template; !isSubset(service.Spec.Selector, pod.Labels) {
		t.Errorf("the Service selects %v, the pods have %v", service.Spec.Selector, pod.Labels)
	}
	monitor := get[*unstructured.Unstructured](r, "ServiceMonitor qtls-system/qtls")
	selected, _, _ := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	if !isSubset(selected, service.Labels) {
		t.Errorf("the ServiceMonitor selects %v, the Service has %v", selected, service.Labels)
	}
	if monitor.GetLabels()["release"] != "prometheus" {
		t.Errorf("labels %v", monitor.GetLabels())
	}
	for monitor, labels := range map[string]map[string]string{
		"qtls-gateways": resources.Selector("gateway"),
		"qtls-hsm":      resources.HsmdSelector("pool", "member"),
	} {
		pods := get[*unstructured.Unstructured](r, "PodMonitor qtls-system/"+monitor)
		if names, _, _ := unstructured.NestedStringSlice(pods.Object, "spec", "namespaceSelector", "matchNames"); !slices.Equal(names, []string{"one", namespace}) {
			t.Errorf("%s looks into %v, want the namespaces that are served, and the operator's own is one", monitor, names)
		}
		if selected, _, _ := unstructured.NestedStringMap(pods.Object, "spec", "selector", "matchLabels"); !isSubset(selected, labels) {
			t.Errorf("%s selects %v, the pods have %v", monitor, selected, labels)
		}
	}
	endpoints, _, _ := unstructured.NestedSlice(monitor.Object, "spec", "endpoints")
	if len(endpoints) != 1 || endpoints[0].(map[string]any)["honorLabels"] != true {
		t.Errorf("endpoints %v: the namespace of an object's metric would be the operator's", endpoints)
	}
	if n := render(t, "metrics: {service: {enabled: false}}").count("Service"); n != 0 {
		t.Error("a Service in spite of metrics.service.enabled=false")
	}
}

// alerts that a PrometheusRule has, by name.
func alerts(t *testing.T, rule *unstructured.Unstructured) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	groups, _, _ := unstructured.NestedSlice(rule.Object, "spec", "groups")
	for _, group := range groups {
		for _, r := range group.(map[string]any)["rules"].([]any) {
			rule := r.(map[string]any)
			name := rule["alert"].(string)
			if all[name] != nil {
				t.Errorf("there are two alerts %s", name)
			}
			all[name] = rule
		}
	}
	return all
}

// explained are what the pattern's group matches in the page on metrics.
func explained(t *testing.T, pattern string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(page), -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return all
}

func TestAlerts(t *testing.T) {
	if n := render(t, "metrics: {serviceMonitor: {enabled: true}}").count("PrometheusRule"); n != 0 {
		t.Error("alerts without metrics.prometheusRule.enabled")
	}
	rule := get[*unstructured.Unstructured](render(t, "metrics: {prometheusRule: {enabled: true, labels: {release: prometheus}}}"), "PrometheusRule qtls-system/qtls")
	if rule.GetLabels()["release"] != "prometheus" {
		t.Errorf("labels %v", rule.GetLabels())
	}
	all := alerts(t, rule)
	if d := cmp.Diff(explained(t, "(?m)^\\| `(QTLS[A-Za-z]+)` \\|"), slices.Sorted(maps.Keys(all))); d != "" {
		t.Errorf("docs/reference/metrics.md (-) and the alerts (+) differ\n%s", d)
	}
	metrics := explained(t, "(?m)^\\| `(qtls_[a-z_]+)` \\|")
	for name, alert := range all {
		expression := alert["expr"].(string)
		for _, metric := range regexp.MustCompile(`\bqtls_[a-z_]+`).FindAllString(expression, -1) {
			if !slices.Contains(metrics, metric) && metric != "qtls_dev_gateway" {
				t.Errorf("%s is about %s, which nothing counts", name, metric)
			}
		}
		// What an annotation says of the alert has to be a label that the expression leaves.
		annotations := alert["annotations"].(map[string]any)
		for _, field := range []string{"summary", "description"} {
			text, _ := annotations[field].(string)
			if text == "" {
				t.Errorf("%s has no %s", name, field)
			}
			for _, m := range regexp.MustCompile(`\$labels\.([a-z_]+)`).FindAllStringSubmatch(text, -1) {
				if by := regexp.MustCompile(`by \(([a-z_, ]+)\)`).FindStringSubmatch(expression); by == nil || !slices.Contains(strings.Split(by[1], ", "), m[1]) {
					t.Errorf("%s: %s has the label %s, which its expression does not", name, field, m[1])
				}
			}
		}
	}
}

// What somebody wants, or what mends itself, is no alert.
func TestWhatAlertsLeaveOut(t *testing.T) {
	all := alerts(t, get[*unstructured.Unstructured](render(t, "metrics: {prometheusRule: {enabled: true}}"), "PrometheusRule qtls-system/qtls"))
	for alert, leaves := range map[string]string{
		"QTLSGatewayNotProgrammed": "unless on (namespace, name)\nqtls_gateway_replicas == 0",
		"QTLSNotReady":             `kind!="QTLSBenchmarkSchedule"`,
		"QTLSAuthorityExpiresSoon": "unless on (namespace, secret)\nqtls_certificate_not_after_timestamp_seconds",
		// Without a leader nobody tells of a PQCCertificate.
		"QTLSServedCertificateExpiresSoon": "and on ()\nleader_election_master_status{name=\"qtls-operator\", namespace=\"qtls-system\"} == 1",
	} {
		if expression := all[alert]["expr"].(string); !strings.Contains(expression, leaves) {
			t.Errorf("%s does not have %q: %s", alert, leaves, expression)
		}
	}
}

// The operator's lease, by whose name its metric tells who leads.
func TestTheAlertOnTheLeaderIsAboutTheOperatorsLease(t *testing.T) {
	r := render(t, "metrics: {prometheusRule: {enabled: true}}")
	expression := alerts(t, get[*unstructured.Unstructured](r, "PrometheusRule qtls-system/qtls"))["QTLSOperatorDown"]["expr"].(string)
	var leases []string
	for _, rule := range get[*rbacv1.Role](r, "Role qtls-system/qtls:leader").Rules {
		if slices.Contains(rule.Resources, "leases") {
			leases = append(leases, rule.ResourceNames...)
		}
	}
	if len(leases) != 1 || !strings.Contains(expression, `name="`+leases[0]+`"`) || !strings.Contains(expression, `namespace="qtls-system"`) {
		t.Errorf("the alert is about %s, the lease is %q", expression, leases)
	}
}

func isSubset(of, all map[string]string) bool {
	for k, v := range of {
		if all[k] != v {
			return false
		}
	}
	return len(of) > 0
}

func TestTheNetworkPolicyLeavesTheMetricsPortOpen(t *testing.T) {
	r := render(t, "networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}")
	p := get[*networkingv1.NetworkPolicy](r, "NetworkPolicy qtls-system/qtls")
	if len(p.Spec.Ingress) != 1 || p.Spec.Ingress[0].Ports[0].Port.StrVal != "metrics" || len(p.Spec.Ingress[0].From) != 1 {
		t.Errorf("ingress is %v", p.Spec.Ingress)
	}
	if len(p.Spec.Egress) > 0 || slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
		t.Error("egress is restricted: the operator could not reach the API server and the agents")
	}
}

func TestServiceAccount(t *testing.T) {
	r := render(t, "serviceAccount: {name: signer, annotations: {example.com/role: x}}")
	if a := get[*corev1.ServiceAccount](r, "ServiceAccount qtls-system/signer"); a.Annotations["example.com/role"] != "x" {
		t.Errorf("annotations %v", a.Annotations)
	}
	if got := operator(r).Spec.Template.Spec.ServiceAccountName; got != "signer" {
		t.Errorf("the pod runs as %q", got)
	}
	if n := render(t, "serviceAccount: {create: false, name: mine}").count("ServiceAccount"); n != 0 {
		t.Error("a ServiceAccount in spite of serviceAccount.create=false")
	}
}

func TestNames(t *testing.T) {
	for values, want := range map[string]string{
		"":                         "qtls",
		"nameOverride: gateways":   "qtls-gateways",
		"fullnameOverride: pq-tls": "pq-tls",
	} {
		get[*appsv1.Deployment](render(t, values), "Deployment qtls-system/"+want)
	}
}

// Names that YAML takes for numbers or truth values, unless they are quoted.
func TestNamesThatLookLikeSomethingElse(t *testing.T) {
	r := render(t, `
watchNamespaces: ["123", "true"]
nameOverride: "123"
fullnameOverride: "456"
priorityClassName: "7"
imagePullSecrets: ["8"]
serviceAccount: {name: "9"}
certManager: {approver: {namespace: "10", serviceAccount: "11"}}
`)
	for _, namespace := range []string{"123", "true"} {
		if role := get[*rbacv1.Role](r, "Role "+namespace+"/456"); role.Labels["app.kubernetes.io/name"] != "123" {
			t.Errorf("labels %v", role.Labels)
		}
	}
	pod := get[*appsv1.Deployment](r, "Deployment qtls-system/456").Spec.Template.Spec
	if pod.PriorityClassName != "7" || pod.ImagePullSecrets[0].Name != "8" || pod.ServiceAccountName != "9" {
		t.Errorf("priority class %q, pull secrets %v, account %q", pod.PriorityClassName, pod.ImagePullSecrets, pod.ServiceAccountName)
	}
	if s := get[*rbacv1.ClusterRoleBinding](r, "ClusterRoleBinding 456-approver").Subjects[0]; s.Namespace != "10" || s.Name != "11" {
		t.Errorf("approver %v", s)
	}
}

func TestBadValuesAreRefusedByName(t *testing.T) {
	for values, says := range map[string]string{
		"replica: 2":                        "replica",
		"replicas: two":                     "/replicas",
		"logLevel: chatty":                  "/logLevel",
		"image: {digest: latest}":           "/image/digest",
		"image: {tag: 'a b'}":               "/image/tag",
		"watchNamespaces: [No_Namespace]":   "/watchNamespaces/0",
		"imageRegistry: ghcr.io/qtls-dev/":  "/imageRegistry",
		"serviceAccount: {create: false}":   "serviceAccount.name",
		"nameOverride: My App":              "/nameOverride",
		"fullnameOverride: my_app":          "/fullnameOverride",
		"benchmarks: {peerImages: ['a b']}": "/benchmarks/peerImages/0",
		"metrics: {service: {enabled: false}, serviceMonitor: {enabled: true}}": "metrics.serviceMonitor.enabled",
	} {
		if out := refused(t, values); !strings.Contains(out, says) {
			t.Errorf("%s: helm does not say %q but\n%s", values, says, out)
		}
	}
}
