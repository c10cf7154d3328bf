//go:build integration

package v1alpha1_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// full is an object of each kind with every field of its spec that has a
// bound. TestEveryBound fails when one is missing.
var full = map[string]string{
	"QTLSGateway": `
spec:
  listeners:
  - name: https
    port: 443
    protocol: HTTPS
    hostnames: [www.example.com]
    preference: Classical
    certificateRefs: [{kind: PQCCertificate, name: web}]
    clientAuthentication:
      mode: Optional
      caRefs: [{kind: ConfigMap, name: clients, key: ca.crt}]
      forwardCertificate: true
    backends:
    - name: app
      port: http
      weight: 3
      tls:
        hostname: app.example.com
        caRefs: [{kind: Secret, name: backend, key: ca.crt}]
  policyRef: {name: hybrid-v1, mode: Require}
  sessionResumption:
    mode: Enabled
    ticketLifetime: 1h
    rotationPeriod: 2h
    ring: blue-green
    store:
      type: External
      external:
        addresses: ["redis.example:6379"]
        sentinelMaster: tickets
        cluster: false
        caRefs: [{kind: Secret, name: redis, key: ca.crt}]
        serverName: redis.example
        keyPrefix: "qtls:"
        credentialsRef: {name: writer}
        agentCredentialsRef: {name: reader}
  postQuantumImplementation: Vectorized
  hsmRef: {name: vault}
  replicas: 3
  resources: {claims: [{name: a}]}
  service:
    type: LoadBalancer
    annotations: {a: b}
    externalTrafficPolicy: Local
    loadBalancerClass: example.com/lb
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]
  nodeSelector: {a: b}
  tolerations: [{key: a}]
  disruptionBudget: {maxUnavailable: 25%}
  drain: {delaySeconds: 5, timeoutSeconds: 30}
`,
	// What excludes something of the first.
	"QTLSGateway/embedded": `
spec:
  listeners:
  - {name: https, port: 443, protocol: HTTPS, certificateRefs: [{name: web}], backends: [{name: app, port: http}]}
  sessionResumption:
    store: {embedded: {highAvailability: true, resources: {claims: [{name: a}]}}}
`,
	"QTLSGateway/redis-operator": `
spec:
  listeners:
  - {name: https, port: 443, protocol: HTTPS, certificateRefs: [{name: web}], backends: [{name: app, port: http}]}
  sessionResumption:
    store:
      type: RedisOperator
      redisOperator: {kind: RedisReplication, clusterSize: 3, image: "redis:1", resources: {claims: [{name: a}]}, sentinel: {size: 3, image: "sentinel:1"}}
`,
	"QTLSPolicy": `
spec:
  description: A policy.
  versions: [TLS1.2, TLS1.3]
  groups: [X25519MLKEM768, x25519]
  signatureSchemes: [mldsa65, ecdsa_secp256r1_sha256]
  cipherSuites: [TLS_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]
`,
	"PQCCertificate": `
spec:
  dnsNames: [www.example.com]
  ipAddresses: [192.0.2.1]
  commonName: www.example.com
  isCA: false
  usages: [ServerAuth, ClientAuth]
  duration: 48h
  renewBefore: 24h
  algorithms: [ML-DSA-65, ECDSA-P256]
  issuerRef: {name: ca, kind: PQCIssuer, group: qtls.dev}
  keyStorage: {type: HSM, hsmRef: {name: pool}, existingKeys: [{algorithm: ML-DSA-65, label: web 2026}]}
`,
	"PQCIssuer":        "spec: {ca: {secretRefs: [{name: pq}], hsmRef: {name: pool}, subordinateAuthorities: Refuse}}",
	"PQCClusterIssuer": "spec: {ca: {secretRefs: [{name: pq}], hsmRef: {name: pool}, subordinateAuthorities: Allow}}",
	"HSMPool": `
spec:
  members:
  - name: hsm-a
    remote: {address: "hsm-a.example:7443", serverName: hsm-a.example, tlsSecretRef: {name: hsm-client}, gatewayTLSSecretRef: {name: hsm-gateways}, sessions: 8}
  order: Spread
  timeout: 2s
`,
	"HSMPool/daemon": `
spec:
  members:
  - name: card
    daemon:
      module:
        image: registry.example.com/vendor:7
        folder: /opt/vendor
        path: /opt/vendor/lib/libpkcs11.so
        files: [{folder: /etc/vendor, secretRef: {name: vendor}}]
        environment: [{name: VENDOR_CONF, value: /etc/vendor/vendor.conf}]
      token: gw
      pinSecretRef: {name: vendor-pin}
      sessions: 8
      nodeSelector: {a: b}
      tolerations: [{key: a}]
      supplementalGroups: [1000]
      resources: {claims: [{name: a}]}
`,
	"HSMPool/daemon-otherwise": `
spec:
  members:
  - name: card
    daemon:
      module:
        image: registry.example.com/vendor:7
        folder: /opt/vendor
        path: /opt/vendor/lib/libpkcs11.so
        files: [{folder: /etc/vendor, configMapRef: {name: vendor}}]
      serial: "0123"
      pinSecretRef: {name: vendor-pin}
`,
	"HSMPool/daemon-with-a-volume": `
spec:
  members:
  - name: card
    daemon:
      module:
        image: registry.example.com/vendor:7
        folder: /opt/vendor
        path: /opt/vendor/lib/libpkcs11.so
        files: [{folder: /var/lib/vendor, persistentVolumeClaimRef: {name: vendor}}]
      serial: "0123"
      pinSecretRef: {name: vendor-pin}
`,
	"HSMPool/module": `
spec:
  members:
  - name: cloud
    module:
      image: registry.example.com/vendor:7
      folder: /opt/vendor
      path: /opt/vendor/lib/libpkcs11.so
      files: [{folder: /etc/vendor, secretRef: {name: vendor}}]
      environment: [{name: VENDOR_CONF, value: /etc/vendor/vendor.conf}]
      token: gw
      pinSecretRef: {name: vendor-pin}
      sessions: 8
`,
	"HSMPool/module-otherwise": `
spec:
  members:
  - name: cloud
    module:
      image: registry.example.com/vendor:7
      folder: /opt/vendor
      path: /opt/vendor/lib/libpkcs11.so
      files: [{folder: /etc/vendor, configMapRef: {name: vendor}}]
      serial: "0123"
      pinSecretRef: {name: vendor-pin}
`,
	"HSMPool/module-with-a-volume": `
spec:
  members:
  - name: cloud
    module:
      image: registry.example.com/vendor:7
      folder: /opt/vendor
      path: /opt/vendor/lib/libpkcs11.so
      files: [{folder: /var/lib/vendor, persistentVolumeClaimRef: {name: vendor}}]
      serial: "0123"
      pinSecretRef: {name: vendor-pin}
`,
	"HSMPool/soft-token": `
spec:
  members:
  - name: soft
    softToken:
      storage: {size: 1Gi, storageClassName: fast}
      resources: {claims: [{name: a}]}
`,
	"QTLSBenchmark": `
spec:
  gatewayRef: {name: web, use: Copy, resources: {claims: [{name: a}]}}
  target:
    listener: https
    serverName: www.example.com
    caRefs: [{kind: Secret, name: ca, key: ca.crt}]
  replicas: [1, 2]
  modes:
  - {name: hybrid, groups: [X25519MLKEM768], signatureSchemes: [mldsa65], handshake: Resumed, operation: Transfer, path: /upload, size: 64Ki, bottleneck: Network, listener: https, serverName: www.example.com}
  load: {preset: Short, virtualUsersPerReplica: 4, latencyLoad: 50, warmUp: 2s, duration: 5s, repetitions: 2, seed: 7}
  generator: {pods: 2, resources: {claims: [{name: a}]}, nodeSelector: {a: b}, tolerations: [{key: a}]}
  peers:
  - {name: nginx, server: NGINX, image: "nginx:1", modes: [hybrid]}
  thresholds: ["hybrid/p99@8 <= 5ms", "efficiency >= 95%"]
  baselineRef: {name: earlier-report, force: true, tolerance: 5}
  maxDuration: 30m
  cancel: false
`,
}

func init() {
	full["QTLSBenchmarkSchedule"] = `
spec:
  schedule: "0 3 * * *"
  timeZone: Europe/Berlin
  suspend: true
  startingDeadlineSeconds: 3600
  successfulHistoryLimit: 5
  failedHistoryLimit: 2
  baseline: Previous
  template:
    ` + strings.ReplaceAll(strings.TrimSpace(full["QTLSBenchmark"]), "\n", "\n    ") + "\n"
}

// crds reads the generated CRDs by kind.
func crds(t *testing.T) map[string]apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob("../../config/crd/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs in config/crd: %v", err)
	}
	byKind := map[string]apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		byKind[crd.Spec.Names.Kind] = crd
	}
	return byKind
}

// object makes an object of a kind out of its full manifest.
func object(t *testing.T, kind string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(full[kind]), &o.Object); err != nil {
		t.Fatal(err)
	}
	kind, _, _ = strings.Cut(kind, "/")
	o.SetAPIVersion("qtls.dev/v1alpha1")
	o.SetKind(kind)
	o.SetName("test")
	if kind != "QTLSPolicy" && kind != "PQCClusterIssuer" {
		o.SetNamespace("default")
	}
	return o
}

// admit asks the API server whether it would take an object.
func admit(t *testing.T, c client.Client, o *unstructured.Unstructured) error {
	t.Helper()
	return c.Create(t.Context(), o.DeepCopy(), client.DryRunAll)
}

// TestEveryBound breaks each bound of each field of each kind, one at a time.
func TestEveryBound(t *testing.T) {
	c := testenv.Client(t)
	for kind, crd := range crds(t) {
		if err := admit(t, c, object(t, kind)); err != nil {
			t.Errorf("%s: the full manifest is refused: %v", kind, err)
			continue
		}
		w := &walk{kind: kind, t: t, client: c}
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		w.node(&schema, "spec")
		if w.broken < 3 {
			t.Errorf("%s: only %d bounds were found to break", kind, w.broken)
		}
		t.Logf("%s: %d bounds broken", kind, w.broken)
	}
}

// A reference is asked for by its name: what no object can be called is refused
// where it is written, rather than by each who looks for it.
func TestReferencesNameWhatThereCanBe(t *testing.T) {
	for kind, crd := range crds(t) {
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		found := 0
		for path, name := range names(&spec, "spec") {
			found++
			pattern, err := regexp.Compile(name.Pattern)
			if err != nil {
				t.Errorf("%s: %s: %v", kind, path, err)
				continue
			}
			for _, no := range []string{"team-a/clients-ca", "a%2fb", "..", "A", "a b", "a,b", "ä", "-a"} {
				if pattern.MatchString(no) {
					t.Errorf("%s: %s takes %q, which no object is called", kind, path, no)
				}
			}
			if !pattern.MatchString("ca-1") || strings.Contains(path, "Ref") && !pattern.MatchString("ca-1.example") {
				t.Errorf("%s: %s does not take what an object may be called", kind, path)
			}
		}
		if found == 0 && kind != "QTLSPolicy" {
			t.Errorf("%s: no reference was found", kind)
		}
	}
}

// names of the objects that a schema's fields refer to, by their paths.
func names(s *apiextensionsv1.JSONSchemaProps, path string) map[string]apiextensionsv1.JSONSchemaProps {
	found := map[string]apiextensionsv1.JSONSchemaProps{}
	if s.Items != nil && s.Items.Schema != nil {
		maps.Copy(found, names(s.Items.Schema, path))
	}
	for field, property := range s.Properties {
		if field == "name" && referring.MatchString(path) {
			found[path+".name"] = property
		}
		maps.Copy(found, names(&property, path+"."+field))
	}
	return found
}

// referring are the fields that name other objects.
var referring = regexp.MustCompile(`\.([a-zA-Z]*Refs?|backends)$`)

type walk struct {
	kind   string
	t      *testing.T
	client client.Client
	broken int
}

// expect puts a value (nil: nothing) at a path and expects a refusal.
func (w *walk) expect(path string, value any, says string) {
	w.t.Helper()
	w.broken++
	o := object(w.t, w.kind)
	if !put(o.Object, strings.Split(path, "."), value) {
		o = object(w.t, w.manifestWith(path))
		if !put(o.Object, strings.Split(path, "."), value) {
			w.t.Errorf("%s: %s has a bound and is in none of the full manifests", w.kind, path)
			return
		}
	}
	err := admit(w.t, w.client, o)
	if err == nil || !strings.Contains(err.Error(), says) {
		w.t.Errorf("%s: %s = %.60v: %v; want a refusal that says %q", w.kind, path, value, err, says)
	}
}

// manifestWith is the kind's manifest that has a path; the first, if none has.
func (w *walk) manifestWith(path string) string {
	for _, name := range slices.Sorted(maps.Keys(full)) {
		if strings.HasPrefix(name, w.kind+"/") && put(object(w.t, name).Object, strings.Split(path, "."), "") {
			return name
		}
	}
	return w.kind
}

// node breaks the bounds of a schema and of those below it.
func (w *walk) node(s *apiextensionsv1.JSONSchemaProps, path string) {
	if len(s.Enum) > 0 {
		w.expect(path, "none-of-these", "Unsupported value")
	}
	if s.MinLength != nil && *s.MinLength > 0 {
		w.expect(path, strings.Repeat("a", int(*s.MinLength)-1), "at least")
	}
	if s.MaxLength != nil {
		w.expect(path, strings.Repeat("a", int(*s.MaxLength)+1), "may not be more than")
	}
	if s.Pattern != "" && !s.XIntOrString {
		w.expect(path, "a\n", "should match")
	}
	if s.Minimum != nil {
		w.expect(path, int64(*s.Minimum)-1, "greater than or equal to")
	}
	if s.Maximum != nil {
		w.expect(path, int64(*s.Maximum)+1, "less than or equal to")
	}
	if s.MinItems != nil && *s.MinItems > 0 {
		w.expect(path, []any{}, "at least 1 items")
	}
	if s.MaxItems != nil {
		w.expect(path, slices.Repeat([]any{w.value(path + ".0")}, int(*s.MaxItems)+1), "Too many")
	}
	if s.XListType != nil && *s.XListType != "atomic" {
		w.expect(path, slices.Repeat([]any{w.value(path + ".0")}, 2), "Duplicate value")
	}
	if s.MaxProperties != nil {
		many := map[string]any{}
		for i := range *s.MaxProperties + 1 {
			many[fmt.Sprint("k", i)] = "v"
		}
		w.expect(path, many, "Too many")
	}
	for _, field := range s.Required {
		if s.Properties[field].Default == nil {
			w.expect(path+"."+field, nil, "Required value")
		}
	}
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[field]
		w.node(&property, path+"."+field)
	}
	if s.Items != nil && s.Items.Schema != nil {
		w.node(s.Items.Schema, path+".0")
	}
}

func (w *walk) value(path string) any {
	var v any = object(w.t, w.kind).Object
	if !put(object(w.t, w.kind).Object, strings.Split(path, "."), "") {
		v = object(w.t, w.manifestWith(path)).Object
	}
	for _, step := range strings.Split(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[step]
		case []any:
			v = in[0]
		}
	}
	return v
}

// put a value at a path; nil takes away what is there. The path must be there,
// but for its last step when that is of a kind of Kubernetes' own.
func put(in any, path []string, value any) bool {
	switch node := in.(type) {
	case map[string]any:
		if len(path) > 1 {
			return put(node[path[0]], path[1:], value)
		}
		_, there := node[path[0]]
		if delete(node, path[0]); value != nil {
			node[path[0]] = value
		}
		return there
	case []any:
		if len(path) > 1 {
			return put(node[0], path[1:], value)
		}
		if node[0] = value; value == nil {
			return false
		}
		return true
	}
	return false
}

func TestDefaultsAreThoseOfTheDefinitions(t *testing.T) {
	definitions := crds(t)
	for path, want := range map[string]any{
		"QTLSGateway/replicas":                                            v1alpha1.DefaultReplicas,
		"QTLSGateway/drain/delaySeconds":                                  v1alpha1.DefaultDrainDelaySeconds,
		"QTLSGateway/drain/timeoutSeconds":                                v1alpha1.DefaultDrainTimeoutSeconds,
		"QTLSGateway/sessionResumption/ticketLifetime":                    v1alpha1.DefaultTicketLifetime,
		"QTLSGateway/sessionResumption/store/redisOperator/clusterSize":   v1alpha1.DefaultRedisServers,
		"QTLSGateway/sessionResumption/store/redisOperator/sentinel/size": v1alpha1.DefaultSentinels,
		"HSMPool/timeout":                                                 v1alpha1.DefaultHSMTimeout,
		"HSMPool/members/daemon/sessions":                                 v1alpha1.DefaultHSMSessions,
		"HSMPool/members/module/sessions":                                 v1alpha1.DefaultHSMSessions,
		"HSMPool/members/remote/sessions":                                 v1alpha1.DefaultRemoteHSMSessions,
		"QTLSBenchmark/baselineRef/tolerance":                             v1alpha1.DefaultTolerance,
		"QTLSBenchmarkSchedule/successfulHistoryLimit":                    v1alpha1.DefaultSuccessfulHistoryLimit,
		"QTLSBenchmarkSchedule/failedHistoryLimit":                        v1alpha1.DefaultFailedHistoryLimit,
	} {
		kind, fields, _ := strings.Cut(path, "/")
		field := definitions[kind].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		for name := range strings.SplitSeq(fields, "/") {
			if field.Items != nil {
				field = *field.Items.Schema
			}
			field = field.Properties[name]
		}
		if field.Default == nil {
			t.Errorf("%s has no default", path)
			continue
		}
		got := strings.Trim(string(field.Default.Raw), `"`)
		if d, ok := want.(time.Duration); ok {
			if parsed, err := time.ParseDuration(got); err != nil || parsed != d {
				t.Errorf("%s is %s by default, and %s in the code", path, got, d)
			}
		} else if got != fmt.Sprint(want) {
			t.Errorf("%s is %s by default, and %v in the code", path, got, want)
		}
	}
}
