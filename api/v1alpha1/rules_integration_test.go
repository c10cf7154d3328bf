//go:build integration

package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/internal/testenv"
)

// A ruleCase is an object that a rule (CEL) refuses, or that is just right.
type ruleCase struct {
	name    string
	spec    string // YAML
	refused string // by a message that says this; empty: accepted
}

func TestRules(t *testing.T) {
	c := testenv.Client(t)
	refusals := map[string][]string{}
	for kind, cases := range ruleCases {
		for _, test := range cases {
			t.Run(kind+"/"+test.name, func(t *testing.T) {
				err := admit(t, c, parse(t, kind, test.spec))
				switch {
				case test.refused == "" && err != nil:
					t.Errorf("refused: %v", err)
				case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)):
					t.Errorf("%v; want a refusal that says %q", err, test.refused)
				case err != nil:
					refusals[kind] = append(refusals[kind], err.Error())
				}
			})
		}
	}
	// What only an update breaks.
	for kind, cases := range updates {
		for _, test := range cases {
			t.Run(kind+"/"+test.name, func(t *testing.T) {
				o := parse(t, kind, test.before)
				o.SetName(fmt.Sprintf("update-%d", len(refusals[kind])))
				if err := c.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				o.Object["spec"] = parse(t, kind, test.after).Object["spec"]
				err := c.Update(t.Context(), o, client.DryRunAll)
				switch {
				case test.refused == "" && err != nil:
					t.Errorf("refused: %v", err)
				case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)):
					t.Errorf("%v; want a refusal that says %q", err, test.refused)
				case err != nil:
					refusals[kind] = append(refusals[kind], err.Error())
				}
				if err := c.Delete(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			})
		}
	}

	for kind, crd := range crds(t) {
		for _, rule := range rulesOf(crd.Spec.Versions[0].Schema.OpenAPIV3Schema) {
			if !strings.Contains(strings.Join(refusals[kind], "\n"), rule.Message) {
				t.Errorf("%s: no test is refused by the rule %q (%s)", kind, rule.Rule, rule.Message)
			}
		}
	}
}

func parse(t *testing.T, kind, spec string) *unstructured.Unstructured {
	t.Helper()
	o := object(t, kind)
	delete(o.Object, "spec")
	if err := yaml.Unmarshal([]byte(spec), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func rulesOf(s *apiextensionsv1.JSONSchemaProps) []apiextensionsv1.ValidationRule {
	rules := s.XValidations
	for _, p := range s.Properties {
		rules = append(rules, rulesOf(&p)...)
	}
	if s.Items != nil && s.Items.Schema != nil {
		rules = append(rules, rulesOf(s.Items.Schema)...)
	}
	return rules
}

// gateway is a QTLSGateway with the listeners given.
func gateway(listeners ...string) string {
	return "spec: {listeners: [" + strings.Join(listeners, ", ") + "]}"
}

const (
	backends = `backends: [{name: app, port: 80}]`
	certs    = `certificateRefs: [{name: web}]`
)

// listener is an HTTPS listener, with more fields.
func listener(name, port string, more ...string) string {
	return fmt.Sprintf("{name: %s, port: %s, protocol: HTTPS, %s, %s}", name, port, certs, strings.Join(append([]string{backends}, more...), ", "))
}

// resuming is a QTLSGateway with fields of sessionResumption.
func resuming(fields string) string {
	return "spec: {sessionResumption: {" + fields + "}, listeners: [" + listener("a", "443") + "]}"
}

// serviceOf is a QTLSGateway with fields of service.
func serviceOf(fields string) string {
	return "spec: {service: {" + fields + "}, listeners: [" + listener("a", "443") + "]}"
}

// external is a QTLSGateway with a ticket store at addresses.
func external(addresses string, more ...string) string {
	return resuming("store: {type: External, external: {" + strings.Join(append([]string{"addresses: [" + addresses + "]", credentials}, more...), ", ") + "}}")
}

// operated is a QTLSGateway whose ticket store the Redis Operator runs.
func operated(fields string) string {
	return resuming("store: {type: RedisOperator, redisOperator: {" + fields + "}}")
}

// policyOf is a QTLSPolicy of TLS 1.3, with these lists.
func policyOf(lists string) string { return "spec: {versions: [TLS1.3], " + lists + "}" }

func named(name, rest string) string {
	return fmt.Sprintf("metadata: {namespace: default, name: %s}\n%s", name, rest)
}

const (
	credentials  = "credentialsRef: {name: writer}, agentCredentialsRef: {name: reader}"
	twoListeners = "two listeners have the same port and host name"
	policyBase   = "signatureSchemes: [mldsa65, rsa_pss_rsae_sha256], groups: [X25519MLKEM768, x25519]"
)

var ruleCases = map[string][]ruleCase{
	"QTLSGateway": {
		{"name of 48", named(strings.Repeat("a", 48), gateway(listener("a", "443"))), ""},
		{"name of 49", named(strings.Repeat("a", 49), gateway(listener("a", "443"))), "metadata.name: at most 48 characters"},

		{"two ports", gateway(listener("a", "443"), listener("b", "8443")), ""},
		{"one port, two names", gateway(listener("a", "443", "hostnames: [a.example.com]"), listener("b", "443", "hostnames: [b.example.com]")), ""},
		{"one port, a name and the rest", gateway(listener("a", "443", "hostnames: [a.example.com]"), listener("b", "443")), ""},
		{"one port, a name and its wildcard", gateway(listener("a", "443", "hostnames: [a.example.com]"), listener("b", "443", `hostnames: ["*.example.com"]`)), ""},
		{"one port twice", gateway(listener("a", "443"), listener("b", "443")), twoListeners},
		{"one port and name twice", gateway(listener("a", "443", "hostnames: [a.example.com, b.example.com]"), listener("b", "443", "hostnames: [b.example.com]")), twoListeners},
		{"one wildcard twice", gateway(listener("a", "443", `hostnames: ["*.example.com"]`), listener("b", "443", `hostnames: ["*.example.com"]`)), twoListeners},

		{"ports 1 and 65535", gateway(listener("a", "1"), listener("b", "65535")), ""},
		{"ports 8403 and 8406", gateway(listener("a", "8403"), listener("b", "8406")), ""},
		{"port 8404", gateway(listener("a", "8404")), "8404 and 8405 are used by the gateway's agent"},
		{"port 8405", gateway(listener("a", "8405")), "8404 and 8405 are used by the gateway's agent"},

		{"HTTPS without certificates", gateway("{name: a, port: 443, protocol: HTTPS, " + backends + "}"), "certificateRefs: needed for HTTPS and TLS listeners"},
		{"TLS without certificates", gateway("{name: a, port: 443, protocol: TLS, " + backends + "}"), "certificateRefs: needed for HTTPS and TLS listeners"},
		{"TLS with certificates", gateway("{name: a, port: 443, protocol: TLS, " + certs + ", " + backends + "}"), ""},
		{"passthrough with certificates", gateway("{name: a, port: 443, protocol: TLSPassthrough, " + certs + ", " + backends + "}"), "a TLSPassthrough listener has none"},
		{"passthrough", gateway("{name: a, port: 443, protocol: TLSPassthrough, " + backends + "}"), ""},
		{"passthrough with client certificates", gateway("{name: a, port: 443, protocol: TLSPassthrough, clientAuthentication: {caRefs: [{name: c}]}, " + backends + "}"),
			"clientAuthentication: not possible for TLSPassthrough"},
		{"passthrough, encrypted again", gateway("{name: a, port: 443, protocol: TLSPassthrough, backends: [{name: app, port: 80, tls: {hostname: a.b, caRefs: [{name: c}]}}]}"),
			"backends[].tls: not possible for TLSPassthrough"},
		{"HTTPS, certificate passed on", gateway(listener("a", "443", "clientAuthentication: {caRefs: [{name: c}], forwardCertificate: true}")), ""},
		{"TLS with client certificates", gateway("{name: a, port: 443, protocol: TLS, " + certs + ", clientAuthentication: {caRefs: [{name: c}]}, " + backends + "}"), ""},
		{"TLS, certificate passed on", gateway("{name: a, port: 443, protocol: TLS, " + certs + ", clientAuthentication: {caRefs: [{name: c}], forwardCertificate: true}, " + backends + "}"),
			"only an HTTPS listener has request headers"},

		{"backend ports", gateway("{name: a, port: 443, protocol: HTTPS, " + certs + ", backends: [{name: a, port: 1}, {name: b, port: 65535}, {name: c, port: http}]}"), ""},
		{"backend port 0", gateway("{name: a, port: 443, protocol: HTTPS, " + certs + ", backends: [{name: a, port: 0}]}"), "port: a number from 1 to 65535 or the name of a port"},
		{"backend port 65536", gateway("{name: a, port: 443, protocol: HTTPS, " + certs + ", backends: [{name: a, port: 65536}]}"), "port: a number from 1 to 65535 or the name of a port"},
		{"backend port of a name that none has", gateway("{name: a, port: 443, protocol: HTTPS, " + certs + ", backends: [{name: a, port: h t}]}"), "port: a number from 1 to 65535 or the name of a port"},
		{"backend port without a name", gateway("{name: a, port: 443, protocol: HTTPS, " + certs + `, backends: [{name: a, port: ""}]}`), "port: a number from 1 to 65535 or the name of a port"},
		{"backend verified by a name", gateway("{name: a, port: 443, protocol: HTTPS, " + certs + ", backends: [{name: app, port: 80, tls: {hostname: a.b, caRefs: [{name: c}]}}]}"), ""},
		{"backend verified by a wildcard", gateway("{name: a, port: 443, protocol: HTTPS, " + certs + `, backends: [{name: app, port: 80, tls: {hostname: "*.b", caRefs: [{name: c}]}}]}`),
			"hostname: a full name, not a wildcard"},

		{"budget of pods", "spec: {disruptionBudget: {maxUnavailable: 0}, listeners: [" + listener("a", "443") + "]}", ""},
		{"budget of all", "spec: {disruptionBudget: {maxUnavailable: 100%}, listeners: [" + listener("a", "443") + "]}", ""},
		{"budget below nothing", "spec: {disruptionBudget: {maxUnavailable: -1}, listeners: [" + listener("a", "443") + "]}", "maxUnavailable: a number of pods or a percentage"},
		{"budget above all", "spec: {disruptionBudget: {maxUnavailable: 101%}, listeners: [" + listener("a", "443") + "]}", "maxUnavailable: a number of pods or a percentage"},

		{"tickets for the shortest time", resuming("ticketLifetime: 10s"), ""},
		{"tickets for the longest time", resuming("ticketLifetime: 168h"), ""},
		{"tickets for too short", resuming("ticketLifetime: 9s"), "ticketLifetime: 10s to 168h"},
		{"tickets for too long", resuming("ticketLifetime: 168h1s, rotationPeriod: 200h"), "ticketLifetime: 10s to 168h"},
		{"keys for as long as tickets", resuming("ticketLifetime: 1h, rotationPeriod: 1h"), ""},
		{"keys for less than tickets", resuming("ticketLifetime: 1h, rotationPeriod: 59m"), "rotationPeriod: at least ticketLifetime"},
		{"keys for less than tickets, by default", resuming("rotationPeriod: 119m"), "rotationPeriod: at least ticketLifetime"},
		{"keys for the longest time", resuming("rotationPeriod: 720h"), ""},
		{"keys for too long", resuming("rotationPeriod: 721h"), "rotationPeriod: at most 720h"},
		{"two embedded stores", resuming("store: {embedded: {highAvailability: true}}"), ""},
		{"an embedded store that is external", resuming("store: {type: External, embedded: {}, external: {addresses: ['a:1'], " + credentials + "}}"), "embedded: only with type Embedded"},
		{"a store of the Redis Operator's", resuming("store: {type: RedisOperator}"), ""},
		{"a store of the Redis Operator's, embedded", resuming("store: {redisOperator: {}}"), "redisOperator: only with type RedisOperator"},
		{"a RedisReplication of one", operated("clusterSize: 1"), ""},
		{"a RedisReplication of none", operated("clusterSize: 0"), "should be greater than or equal to 1"},
		{"a RedisReplication with Sentinels", operated("sentinel: {}"), ""},
		{"a RedisReplication with Sentinels, said twice", operated("kind: RedisReplication, sentinel: {size: 1}"), ""},
		{"a RedisCluster", operated("kind: RedisCluster"), ""},
		{"a RedisCluster of two", operated("kind: RedisCluster, clusterSize: 2"), "clusterSize: at least 3 with kind RedisCluster"},
		{"a RedisCluster with Sentinels", operated("kind: RedisCluster, sentinel: {}"), "sentinel: only with kind RedisReplication"},
		{"another kind of the Redis Operator's", operated("kind: Redis"), `supported values: "RedisReplication", "RedisCluster"`},
		{"an image with a space", operated("image: 'a b'"), "should match"},
		{"an external store without anything", resuming("store: {type: External}"), "external: needed with type External"},
		{"an external store of type Embedded", resuming("store: {external: {addresses: ['a:1'], " + credentials + "}}"), "external: needed with type External"},
		{"addresses", external("'redis.example:6379'"), ""},
		{"address of IPv4", external("'192.0.2.1:6379'"), ""},
		{"address of IPv6", external("'[2001:db8::1]:6379'"), ""},
		{"address without a port", external("'redis.example'"), "should match"},
		{"address with the last port", external("'redis.example:65535'"), ""},
		{"address with a port beyond it", external("'redis.example:65536'"), "should match"},
		{"address with a name that is none", external("'redis..example:6379'"), "should match"},
		{"address as a URL", external("'rediss://redis.example:6379'"), "should match"},
		{"address with a password", external("'user:secret@redis.example:6379'"), "should match"},
		{"address with a line break", external(`"a:1\n"`), "should match"},
		{"two addresses of one server", external("'a:1', 'b:1'"), "addresses: one, unless"},
		{"Sentinels", external("'a:1', 'b:1'", "sentinelMaster: tickets"), ""},
		{"a cluster", external("'a:1', 'b:1'", "cluster: true"), ""},
		{"Sentinels of a cluster", external("'a:1', 'b:1'", "cluster: true", "sentinelMaster: tickets"), "cluster: not together with sentinelMaster"},
		{"a server's name", external("'a:1'", "serverName: redis.example"), ""},
		{"a server's name that is many", external("'a:1'", "serverName: '*.example'"), "serverName: a full name, not a wildcard"},

		{"host names", gateway(listener("a", "443", `hostnames: [localhost, a.b.c, "*.a", xn--bcher-kva.example, 1.2.3.4, `+strings.Repeat("a", 63)+`.b]`)), ""},
		{"host name in capitals", gateway(listener("a", "443", `hostnames: [A.example.com]`)), "should match"},
		{"host name with a wildcard within", gateway(listener("a", "443", `hostnames: ["a.*.com"]`)), "should match"},
		{"host name with a line break", gateway(listener("a", "443", `hostnames: ["a\nbind :1"]`)), "should match"},
		{"host name with a space", gateway(listener("a", "443", `hostnames: ["a b"]`)), "should match"},
		{"host name with a quote", gateway(listener("a", "443", `hostnames: ["a'b"]`)), "should match"},
		{"host name with a label of 64", gateway(listener("a", "443", `hostnames: [`+strings.Repeat("a", 64)+`.b]`)), "should match"},
		{"listener name with a line break", gateway(listener(`"a\n"`, "443")), "should match"},
		{"32 listeners", gateway(manyListeners(32)...), ""},
	},
	"QTLSPolicy": {
		{"both versions", "spec: {versions: [TLS1.2, TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], " + policyBase + "}", ""},
		{"TLS 1.3 alone", "spec: {versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256], signatureSchemes: [mldsa65], groups: [MLKEM1024]}", ""},
		{"TLS 1.2 alone", "spec: {versions: [TLS1.2], cipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], " + policyBase + "}", ""},
		{"TLS 1.3 without suites", "spec: {versions: [TLS1.2, TLS1.3], cipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], " + policyBase + "}", "version TLS1.3 needs at least one of"},
		{"TLS 1.2 without suites", "spec: {versions: [TLS1.2, TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256], " + policyBase + "}", "version TLS1.2 needs at least one suite"},
		{"suites of TLS 1.2 without it", "spec: {versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], " + policyBase + "}", "which versions does not name"},
		{"the provider's algorithms", "spec: {versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256], signatureSchemes: [p384_haetae3, OV_Ip_pkc], groups: [p256_smaug_t1, ntru_plus_kem1152]}", ""},
		{"a group that there is not", "spec: {versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256], signatureSchemes: [mldsa65], groups: [p256_smaug_t2]}",
			`spec.groups[0]: Unsupported value: "p256_smaug_t2": supported values: "X25519MLKEM768", `},
		{"a scheme whose certificates are too large", "spec: {versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256], signatureSchemes: [OV_V], groups: [x25519]}",
			`spec.signatureSchemes[0]: Unsupported value: "OV_V"`},
		{"TLS 1.2 with post-quantum groups alone", "spec: {versions: [TLS1.2], cipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], signatureSchemes: [mldsa65], groups: [X25519MLKEM768]}",
			"version TLS1.2 has no post-quantum groups"},
		{"TLS 1.2 with post-quantum schemes alone", "spec: {versions: [TLS1.2], cipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], signatureSchemes: [mldsa65, rsa3072_mldsa44], groups: [x25519]}",
			"signatureSchemes: version TLS1.2 has no post-quantum ones"},
		{"TLS 1.2 with a scheme for other suites", "spec: {versions: [TLS1.2], cipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256], signatureSchemes: [ecdsa_secp256r1_sha256], groups: [x25519]}",
			"or one that starts with rsa_pss_ beside a suite that starts with TLS_ECDHE_RSA_"},
		{"TLS 1.2 with a suite for other schemes", "spec: {versions: [TLS1.2, TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256], signatureSchemes: [rsa_pss_rsae_sha256], groups: [x25519]}",
			"name at least one that starts with ecdsa_ beside a suite that starts with TLS_ECDHE_ECDSA_"},
		{"TLS 1.2 with ECDSA", "spec: {versions: [TLS1.2], cipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256], signatureSchemes: [ecdsa_secp256r1_sha256], groups: [x25519]}", ""},
		{"a group twice", "spec: {versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256], signatureSchemes: [mldsa65], groups: [x25519, X25519MLKEM768, x25519]}", "groups: each once"},
		{"a scheme twice", "spec: {versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256], signatureSchemes: [mldsa65, mldsa65], groups: [x25519]}", "signatureSchemes: each once"},
		{"a suite twice", "spec: {versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256], signatureSchemes: [mldsa65], groups: [x25519]}", "cipherSuites: each once"},
		{"description of 500", "spec: {description: " + strings.Repeat("a", 500) + ", versions: [TLS1.3], cipherSuites: [TLS_AES_128_GCM_SHA256], " + policyBase + "}", ""},
	},
	"PQCCertificate": {
		{"name of 200", named(strings.Repeat("a", 200), "spec: {dnsNames: [a], issuerRef: {name: a}}"), ""},
		{"name of 201", named(strings.Repeat("a", 201), "spec: {dnsNames: [a], issuerRef: {name: a}}"), "metadata.name: at most 200 characters"},
		{"host name alone", "spec: {dnsNames: [a], issuerRef: {name: a}}", ""},
		{"address alone", `spec: {ipAddresses: ["2001:db8::1", 192.0.2.1], issuerRef: {name: a}}`, ""},
		{"nothing named", "spec: {commonName: a, issuerRef: {name: a}}", "a server certificate needs at least one name"},
		{"a client's, named alone", "spec: {commonName: a, usages: [ClientAuth], issuerRef: {name: a}}", ""},
		{"a client's with a host name", "spec: {dnsNames: [a], usages: [ClientAuth], issuerRef: {name: a}}", ""},
		{"a client's without any name", "spec: {usages: [ClientAuth], issuerRef: {name: a}}", "and a client's (usages) that has no other name"},
		{"a client's that is a server's too", "spec: {commonName: a, usages: [ClientAuth, ServerAuth], issuerRef: {name: a}}", "a server certificate needs at least one name"},
		{"no usage", "spec: {dnsNames: [a], usages: [], issuerRef: {name: a}}", "should have at least 1 items"},
		{"a usage that there is not", "spec: {dnsNames: [a], usages: [CodeSigning], issuerRef: {name: a}}", "Unsupported value"},
		{"usages of a CA", "spec: {isCA: true, commonName: a, usages: [ServerAuth], issuerRef: {name: a}}", "usages: not of a CA certificate"},
		{"CA", "spec: {isCA: true, commonName: a, issuerRef: {name: a}}", ""},
		{"CA without a name", "spec: {isCA: true, dnsNames: [a], issuerRef: {name: a}}", "a CA certificate (isCA) needs one"},
		{"no CA, and said so", "spec: {isCA: false, dnsNames: [a], issuerRef: {name: a}}", ""},
		{"address that is none", "spec: {ipAddresses: [192.0.2.256], issuerRef: {name: a}}", "ipAddresses: each an IPv4 or IPv6 address"},
		{"address with a prefix", "spec: {ipAddresses: [192.0.2.0/24], issuerRef: {name: a}}", "ipAddresses: each an IPv4 or IPv6 address"},
		{"shortest", "spec: {dnsNames: [a], duration: 5m, renewBefore: 1m, issuerRef: {name: a}}", ""},
		{"longest", "spec: {dnsNames: [a], duration: 262800h, issuerRef: {name: a}}", ""},
		{"too short", "spec: {dnsNames: [a], duration: 4m59s, renewBefore: 1m, issuerRef: {name: a}}", "duration: from 5m to 262800h"},
		{"too long", "spec: {dnsNames: [a], duration: 262801h, issuerRef: {name: a}}", "duration: from 5m to 262800h"},
		{"no duration at all", "spec: {dnsNames: [a], duration: soon, issuerRef: {name: a}}", "duration"},
		{"renewed all the time", "spec: {dnsNames: [a], renewBefore: 59s, issuerRef: {name: a}}", "renewBefore: at least 1m"},
		{"renewed before it is issued", "spec: {dnsNames: [a], duration: 1h, renewBefore: 1h, issuerRef: {name: a}}", "renewBefore: must be shorter than duration"},
		{"renewed before it is issued, by default", "spec: {dnsNames: [a], renewBefore: 2160h, issuerRef: {name: a}}", "renewBefore: must be shorter than duration"},
		{"renewed in time, by default", "spec: {dnsNames: [a], renewBefore: 2159h, issuerRef: {name: a}}", ""},
		{"our issuers", "spec: {dnsNames: [a], issuerRef: {name: a, kind: PQCClusterIssuer}}", ""},
		{"cert-manager's issuers", "spec: {dnsNames: [a], issuerRef: {name: a, kind: ClusterIssuer, group: cert-manager.io}}", ""},
		{"our kind in cert-manager's group", "spec: {dnsNames: [a], issuerRef: {name: a, group: cert-manager.io}}", "kind: Issuer or ClusterIssuer in group cert-manager.io"},
		{"others' issuers", "spec: {dnsNames: [a], issuerRef: {name: a, kind: VaultIssuer, group: example.com}}", ""},
		{"cert-manager's kind in our group", "spec: {dnsNames: [a], issuerRef: {name: a, kind: ClusterIssuer}}", "for a cert-manager issuer set group to cert-manager.io"},
		{"algorithm twice", "spec: {dnsNames: [a], algorithms: [ML-DSA-65, ML-DSA-65], issuerRef: {name: a}}", "Duplicate value"},
		{"every algorithm", "spec: {dnsNames: [a], algorithms: [ML-DSA-44, ML-DSA-65, ML-DSA-87, ECDSA-P256, ECDSA-P384, RSA-2048, RSA-3072, RSA-4096], issuerRef: {name: a}}", ""},
		{"wildcard", `spec: {dnsNames: ["*.example.com"], issuerRef: {name: a}}`, ""},
		{"keys in an HSM", "spec: {dnsNames: [a], issuerRef: {name: a}, keyStorage: {type: HSM, hsmRef: {name: pool}}}", ""},
		{"keys in an HSM, every algorithm", "spec: {dnsNames: [a], algorithms: [ML-DSA-44, ML-DSA-65, ML-DSA-87, ECDSA-P256, ECDSA-P384, RSA-2048, RSA-3072, RSA-4096], issuerRef: {name: a}, keyStorage: {type: HSM, hsmRef: {name: pool}}}", ""},
		{"keys in an HSM, and in none", "spec: {dnsNames: [a], issuerRef: {name: a}, keyStorage: {type: HSM}}", "hsmRef: needed with type HSM"},
		{"keys in Secrets, and an HSM", "spec: {dnsNames: [a], issuerRef: {name: a}, keyStorage: {hsmRef: {name: pool}}}", "hsmRef: needed with type HSM, and only there"},
		{"an authority's key in an HSM", "spec: {isCA: true, commonName: a, issuerRef: {name: a}, keyStorage: {type: HSM, hsmRef: {name: pool}}}", ""},
		{"a key that is there", "spec: {dnsNames: [a], issuerRef: {name: a}, keyStorage: {type: HSM, hsmRef: {name: pool}, existingKeys: [{algorithm: ML-DSA-65, label: web 2026}]}}", ""},
		{"a key that is there, in a Secret", "spec: {dnsNames: [a], issuerRef: {name: a}, keyStorage: {existingKeys: [{algorithm: ML-DSA-65, label: web}]}}", "existingKeys: only with type HSM"},
		{"a key that is there, for nothing", "spec: {dnsNames: [a], algorithms: [ECDSA-P256], issuerRef: {name: a}, keyStorage: {type: HSM, hsmRef: {name: pool}, existingKeys: [{algorithm: ML-DSA-65, label: web}]}}", "existingKeys: each of an algorithm in algorithms"},
		{"a key that is there, twice", "spec: {dnsNames: [a], issuerRef: {name: a}, keyStorage: {type: HSM, hsmRef: {name: pool}, existingKeys: [{algorithm: ML-DSA-65, label: web}, {algorithm: ECDSA-P256, label: web}]}}", "each label once"},
		{"keys in an HSM that no HSM has", "spec: {dnsNames: [a], algorithms: [haetae3], issuerRef: {name: a}, keyStorage: {type: HSM, hsmRef: {name: pool}}}", "algorithms: HSMs have ML-DSA, ECDSA and RSA"},
		{"keys in Secrets that no HSM has", "spec: {dnsNames: [a], algorithms: [haetae3], issuerRef: {name: a}, keyStorage: {type: Secret}}", ""},
		{"two wildcards in a name", `spec: {dnsNames: ["*.*.example.com"], issuerRef: {name: a}}`, "should match"},
	},
	"HSMPool": {
		{"name of 32", named(strings.Repeat("a", 32), hsmPool("")), ""},
		{"name of 33", named(strings.Repeat("a", 33), hsmPool("")), "metadata.name: at most 32 characters"},
		{"shortest time-out", hsmPool("timeout: 100ms"), ""},
		{"too short a time-out", hsmPool("timeout: 99ms"), "timeout: 100ms to 60s"},
		{"longest time-out", hsmPool("timeout: 1m"), ""},
		{"too long a time-out", hsmPool("timeout: 61s"), "timeout: 100ms to 60s"},
		{"16 members", hsmPool("", manyMembers(15)...), ""},
		{"two members of one name", hsmPool("", hsmMember("hsm", "h:7443"), hsmMember("hsm", "i:7443")), "Duplicate value"},
		{"an IPv6 address", hsmPool("", hsmMember("v6", `"[2001:db8::1]:7443"`)), ""},
		{"an address without a port", hsmPool("", hsmMember("b", "hsm.example")), "should match"},
		{"an address with a port that is none", hsmPool("", hsmMember("b", "hsm.example:74433")), "should match"},
		{"a token in software", "spec: {members: [{name: soft, softToken: {}}]}", ""},
		{"a token in software, with its storage", "spec: {members: [{name: soft, softToken: {storage: {ephemeral: true}}}]}", ""},
		{"ephemeral storage with a size", "spec: {members: [{name: soft, softToken: {storage: {ephemeral: true, size: 1Gi}}}]}", "ephemeral storage has no size"},
		{"a member of two kinds", "spec: {members: [{name: a, softToken: {}, remote: {address: \"h:7443\", tlsSecretRef: {name: client}}}]}", "a member is"},
		{"a member of no kind", "spec: {members: [{name: a}]}", "a member is"},
		{"a digit first, where nothing runs", named("1st", hsmPool("")), ""},
		{"a digit first, and a Service", named("1st", "spec: {members: [{name: soft, softToken: {}}]}"), "metadata.name: a letter"},
		{"a vendor's library", vendorPool("/opt/vendor", "token: gw"), ""},
		{"a token without a name", vendorPool("/opt/vendor", ""), "daemon: Invalid value: name the token by either token or serial"},
		{"a token with two names", vendorPool("/opt/vendor", "token: gw, serial: \"1\""), "daemon: Invalid value: name the token by either token or serial"},
		{"a token with a # in its name", vendorPool("/opt/vendor", "token: HSM#2"), ""},
		{"a token's label with a comment", vendorPool("/opt/vendor", "token: \"HSM #2\""), "token: # at the beginning or after a blank"},
		{"a token's label that is a comment", modulePool("token: \"#1\""), "token: # at the beginning or after a blank"},
		{"a token's serial number with a comment", modulePool("serial: \"HSM #2\""), "serial: # at the beginning or after a blank"},
		{"a token's serial number that is a comment", vendorPool("/opt/vendor", "serial: \"#1\""), "serial: # at the beginning or after a blank"},
		{"a library elsewhere", vendorPool("/opt/other", "token: gw"), "module: path is a file below folder"},
		{"a folder that the daemon needs", vendorPool("/usr/lib", "token: gw"), "folder: the container needs its own"},
		{"files of nothing", vendorPool("/opt/vendor", "token: gw", "files: [{folder: /etc/vendor}]"), "files: name one of a Secret, a ConfigMap and a PersistentVolumeClaim"},
		{"files of two", vendorPool("/opt/vendor", "token: gw", "files: [{folder: /etc/vendor, secretRef: {name: a}, configMapRef: {name: a}}]"), "files: name one of a Secret, a ConfigMap and a PersistentVolumeClaim"},
		{"files of a volume", vendorPool("/opt/vendor", "token: gw", "files: [{folder: /var/lib/vendor, persistentVolumeClaimRef: {name: a}}]"), ""},
		{"files where the library is", vendorPool("/opt/vendor", "token: gw", "files: [{folder: /opt/vendor, secretRef: {name: a}}]"), "files: their folder would hide module.folder"},
		{"files above the library", vendorPool("/opt/vendor", "token: gw", "files: [{folder: /opt, secretRef: {name: a}}]"), "files: their folder would hide module.folder"},
		{"files below the library", vendorPool("/opt/vendor", "token: gw", "files: [{folder: /opt/vendor/etc, secretRef: {name: a}}]"), ""},
		{"files beside the library", vendorPool("/opt/vendor", "token: gw", "files: [{folder: /opt/vendor-files, secretRef: {name: a}}]"), ""},
		{"a vendor's library in gateway pods", modulePool("token: gw"), ""},
		{"a library of gateway pods, its token without a name", modulePool(""), "module: Invalid value: name the token by either token or serial"},
		{"a library of gateway pods, with a variable", modulePool("token: gw, environment: [{name: VENDOR_CONF, value: /etc/vendor/conf}]"), ""},
		{"a library of gateway pods, with a variable of OpenSSL", modulePool("token: gw, environment: [{name: OPENSSL_CONF, value: /etc/vendor/conf}]"), "environment: variables that begin with QTLS_, HAPROXY_, OPENSSL_ or LD_"},
		{"a daemon's library, with a variable of the loader", vendorPool("/opt/vendor", "token: gw", "environment: [{name: LD_LIBRARY_PATH, value: /opt/vendor/lib}]"), ""},
		{"a size", "spec: {members: [{name: soft, softToken: {storage: {size: 1Mi}}}]}", ""},
		{"a size without a unit", "spec: {members: [{name: soft, softToken: {storage: {size: 1048576}}}]}", ""},
		{"no size", "spec: {members: [{name: soft, softToken: {storage: {size: \"0\"}}}]}", "size: more than 0"},
		{"no size, without a unit", "spec: {members: [{name: soft, softToken: {storage: {size: 0}}}]}", "size: more than 0"},
		{"less than no size", "spec: {members: [{name: soft, softToken: {storage: {size: -1Gi}}}]}", "size: more than 0"},
		{"a group that is none", vendorPool("/opt/vendor", "token: gw, supplementalGroups: [-1]"), "greater than or equal to 0"},
		{"a wildcard for a server name", hsmPool("", hsmMember("b", "h:7443", `serverName: "*.example.com"`)), "serverName: a full name"},
	},
	"QTLSBenchmark": {
		{"name of 40", named(strings.Repeat("a", 40), benchmark("")), ""},
		{"name of 41", named(strings.Repeat("a", 41), benchmark("")), "metadata.name: at most 40 characters"},
		{"nothing but what is needed", benchmark(""), ""},
		{"resources of a copy", benchmark("gatewayRef: {name: web, resources: {limits: {cpu: 50m}}}"), ""},
		{"resources of the gateway itself", benchmark("gatewayRef: {name: web, use: InPlace, resources: {limits: {cpu: 50m}}}"), "resources: only with use Copy"},
		{"a wildcard for a server name", benchmark(`target: {serverName: "*.example.com", caRefs: [{name: ca}]}`), "serverName: a full name"},
		{"100 replicas", benchmark("replicas: [1, 100]"), ""},
		{"101 replicas", benchmark("replicas: [1, 101]"), "replicas: numbers of pods from 1 to 100"},
		{"no replicas", benchmark("replicas: [0]"), "replicas: numbers of pods from 1 to 100"},
		{"a number of replicas twice", benchmark("replicas: [2, 2]"), "Duplicate value"},
		{"peers", benchmark("peers: [{name: plain, server: HAProxy}, {name: nginx, server: NGINX, image: nginx}]"), ""},
		{"an nginx without an image", benchmark("peers: [{name: nginx, server: NGINX}]"), "image: needed for NGINX"},
		{"a peer of another kind", benchmark("peers: [{name: other, server: Envoy}]"), "Unsupported value"},
		{"a peer twice", benchmark("peers: [{name: a, server: HAProxy}, {name: a, server: HAProxy}]"), "Duplicate value"},
		{"the shortest warm-up", benchmark("load: {warmUp: 2s}"), ""},
		{"too short a warm-up", benchmark("load: {warmUp: 1999ms}"), "warmUp: 2s to 5m"},
		{"the longest warm-up", benchmark("load: {warmUp: 5m}"), ""},
		{"too long a warm-up", benchmark("load: {warmUp: 301s}"), "warmUp: 2s to 5m"},
		{"the shortest duration", benchmark("load: {duration: 1s}"), ""},
		{"too short a duration", benchmark("load: {duration: 999ms}"), "duration: 1s to 30m"},
		{"too long a duration", benchmark("load: {duration: 1801s}"), "duration: 1s to 30m"},
		{"the shortest run", benchmark("maxDuration: 1m"), ""},
		{"too short a run", benchmark("maxDuration: 59s"), "maxDuration: 1m to 24h"},
		{"too long a run", benchmark("maxDuration: 1441m"), "maxDuration: 1m to 24h"},
		{"a request", benchmark("modes: " + benchmarkMode("operation: Request, path: \"/a?b=c\"")), ""},
		{"a path of a handshake", benchmark("modes: " + benchmarkMode("path: /")), "path: only with operation Request or Transfer"},
		{"a path that is none", benchmark("modes: " + benchmarkMode("operation: Request, path: a")), "path"},
		{"a transfer", benchmark("modes: " + benchmarkMode("operation: Transfer, size: 64Ki, path: /")), ""},
		{"the smallest transfer", benchmark("modes: " + benchmarkMode("operation: Transfer, size: 1Ki")), ""},
		{"the largest transfer", benchmark("modes: " + benchmarkMode("operation: Transfer, size: 1024Ki")), ""},
		{"too small a transfer", benchmark("modes: " + benchmarkMode("operation: Transfer, size: 0Ki")), "size"},
		{"too large a transfer", benchmark("modes: " + benchmarkMode("operation: Transfer, size: 1025Ki")), "size"},
		{"a transfer of megabytes", benchmark("modes: " + benchmarkMode("operation: Transfer, size: 2Mi")), "size"},
		{"a transfer of nothing", benchmark("modes: " + benchmarkMode("operation: Transfer")), "size: needed with operation Transfer"},
		{"a size of a request", benchmark("modes: " + benchmarkMode("operation: Request, size: 1Ki")), "size: needed with operation Transfer, and only there"},
		{"a mode with a wildcard for a server name", benchmark("modes: " + benchmarkMode(`serverName: "*.example.com"`)), "serverName: a full name"},
		{"a tolerance of more than everything", benchmark("baselineRef: {name: a, tolerance: 101}"), "less than or equal to 100"},
	},
	"QTLSBenchmarkSchedule": {
		{"name of 31", named(strings.Repeat("a", 31), scheduleOf("")), ""},
		{"name of 32", named(strings.Repeat("a", 32), scheduleOf("")), "metadata.name: at most 31 characters"},
		{"nothing but what is needed", scheduleOf(""), ""},
		{"another schedule", scheduleOf(`schedule: "@daily"`), ""},
		{"no schedule", scheduleOf(`schedule: ""`), "schedule"},
		{"a schedule with a time zone", scheduleOf(`schedule: "TZ=UTC 0 3 * * *"`), "schedule: it has no time zone; use timeZone"},
		{"a schedule without times", scheduleOf(`schedule: "@every 1h"`), "schedule: @every has no times of its own"},
		{"a baseline of other kind", scheduleOf("baseline: First"), "Unsupported value"},
		{"compared with the one before", scheduleOf("baseline: Previous"), ""},
		{"compared, twice each", scheduleOf("baseline: Previous\n  template: {spec: {gatewayRef: {name: web}, target: {caRefs: [{name: ca}]}, load: {repetitions: 2}, modes: " + benchmarkMode("") + "}}"), ""},
		{"compared, and measured once", scheduleOf("baseline: Previous\n  template: {spec: {gatewayRef: {name: web}, target: {caRefs: [{name: ca}]}, load: {repetitions: 1}, modes: " + benchmarkMode("") + "}}"), "baseline: what Previous compares needs an interval"},
		{"too short a deadline", scheduleOf("startingDeadlineSeconds: 9"), "greater than or equal to 10"},
		{"no history", scheduleOf("successfulHistoryLimit: 0"), "greater than or equal to 1"},
		{"a template that is cancelled", scheduleOf("template: {spec: {gatewayRef: {name: web}, target: {caRefs: [{name: ca}]}, modes: " + benchmarkMode("") + ", cancel: true}}"), "cancel: not in a template; suspend the schedule instead"},
	},
	"PQCIssuer":        issuerCases,
	"PQCClusterIssuer": issuerCases,
}

func manyListeners(n int) []string {
	var list []string
	for i := range n {
		list = append(list, listener(fmt.Sprintf("l%d", i), "443", fmt.Sprintf("hostnames: [h%d.example.com]", i)))
	}
	return list
}

// hsmPool has a member, and others.
func hsmPool(field string, others ...string) string {
	return "spec: {members: [" + strings.Join(append([]string{hsmMember("a", "hsm.example:7443")}, others...), ", ") + "], " + field + "}"
}

func hsmMember(name, address string, fields ...string) string {
	remote := append([]string{"address: " + address, "tlsSecretRef: {name: client}"}, fields...)
	return "{name: " + name + ", remote: {" + strings.Join(remote, ", ") + "}}"
}

// vendorPool has a member with a library in a folder.
func vendorPool(folder, token string, module ...string) string {
	fields := append([]string{"image: vendor", "folder: " + folder, "path: /opt/vendor/lib.so"}, module...)
	return "spec: {members: [{name: a, daemon: {pinSecretRef: {name: pin}, module: {" + strings.Join(fields, ", ") + "}, " + token + "}}]}"
}

func modulePool(fields string) string {
	return "spec: {members: [{name: a, module: {pinSecretRef: {name: pin}, image: vendor, folder: /opt/vendor, path: /opt/vendor/lib.so, " + fields + "}}]}"
}

func manyMembers(n int) []string {
	var list []string
	for i := range n {
		list = append(list, hsmMember(fmt.Sprintf("m%d", i), "h:7443"))
	}
	return list
}

var issuerCases = []ruleCase{
	{"self-signed", "spec: {selfSigned: {}}", ""},
	{"one authority", "spec: {ca: {secretRefs: [{name: a}]}}", ""},
	{"two authorities", "spec: {ca: {secretRefs: [{name: a}, {name: b}]}}", ""},
	{"neither", "spec: {}", "set exactly one of selfSigned and ca"},
	{"both", "spec: {selfSigned: {}, ca: {secretRefs: [{name: a}]}}", "set exactly one of selfSigned and ca"},
	{"one Secret twice", "spec: {ca: {secretRefs: [{name: a}, {name: a}]}}", "Duplicate value"},
	{"other authorities allowed", "spec: {ca: {secretRefs: [{name: a}], subordinateAuthorities: Allow}}", ""},
	{"other authorities refused", "spec: {ca: {secretRefs: [{name: a}], subordinateAuthorities: Refuse}}", ""},
	{"neither of these", "spec: {ca: {secretRefs: [{name: a}], subordinateAuthorities: Sign}}", `supported values: "Allow", "Refuse"`},
}

// benchmark is a QTLSBenchmark with fields in place of the usual ones.
func benchmark(fields string) string {
	spec := "spec:\n"
	for _, usual := range []string{"gatewayRef: {name: web}", "target: {caRefs: [{name: ca}]}", "modes: [{name: a, groups: [x25519], signatureSchemes: [mldsa65]}]"} {
		if key, _, _ := strings.Cut(usual, ":"); !strings.HasPrefix(fields, key+":") {
			spec += "  " + usual + "\n"
		}
	}
	return spec + "  " + fields + "\n"
}

// benchmarkMode is a mode with fields.
func benchmarkMode(fields string) string {
	return "[{name: a, groups: [x25519], signatureSchemes: [mldsa65], " + fields + "}]"
}

// What a QTLSBenchmark may be, the template of a schedule may.
func init() {
	for _, c := range ruleCases["QTLSBenchmark"] {
		if !strings.HasPrefix(c.name, "name of ") {
			c.name, c.spec = "template: "+c.name, "spec:\n  schedule: \"0 3 * * *\"\n  template:\n    "+strings.ReplaceAll(strings.TrimSpace(c.spec), "\n", "\n    ")
			ruleCases["QTLSBenchmarkSchedule"] = append(ruleCases["QTLSBenchmarkSchedule"], c)
		}
	}
}

// scheduleOf is a QTLSBenchmarkSchedule with a field in place of the usual one.
func scheduleOf(field string) string {
	spec := "spec:\n"
	for _, usual := range []string{`schedule: "0 3 * * *"`, "template: {spec: {gatewayRef: {name: web}, target: {caRefs: [{name: ca}]}, modes: " + benchmarkMode("") + "}}"} {
		if key, _, _ := strings.Cut(usual, ":"); !strings.HasPrefix(field, key+":") {
			spec += "  " + usual + "\n"
		}
	}
	return spec + "  " + field + "\n"
}

var updates = map[string][]struct{ name, before, after, refused string }{
	"QTLSGateway": {
		{"a load balancer of another class", serviceOf("type: LoadBalancer, loadBalancerClass: a/b"), serviceOf("type: LoadBalancer, loadBalancerClass: a/c"), "loadBalancerClass: Kubernetes does not change it"},
		{"a load balancer of a class by and by", serviceOf("type: LoadBalancer"), serviceOf("type: LoadBalancer, loadBalancerClass: a/b"), "loadBalancerClass: Kubernetes does not change it"},
		{"a load balancer of a class no more", serviceOf("type: LoadBalancer, loadBalancerClass: a/b"), serviceOf("type: LoadBalancer"), "loadBalancerClass: Kubernetes does not change it"},
		{"a load balancer of the same class", serviceOf("type: LoadBalancer, loadBalancerClass: a/b"), serviceOf("type: LoadBalancer, loadBalancerClass: a/b, annotations: {a: b}"), ""},
		{"a load balancer by and by", serviceOf("type: ClusterIP"), serviceOf("type: LoadBalancer, loadBalancerClass: a/b"), ""},
		{"a load balancer no more", serviceOf("type: LoadBalancer, loadBalancerClass: a/b"), serviceOf("type: NodePort"), ""},
	},
	"QTLSBenchmark": {
		{"unchanged", benchmark("replicas: [1]"), benchmark("replicas: [1]"), ""},
		{"changed", benchmark("replicas: [1]"), benchmark("replicas: [2]"), "spec: a QTLSBenchmark is immutable but for cancel"},
		{"with thresholds", benchmark("replicas: [1]"), benchmark(`thresholds: ["failures == 0"]`), "spec: a QTLSBenchmark is immutable but for cancel"},
		{"with a peer", benchmark("replicas: [1]"), benchmark("peers: [{name: a, server: HAProxy}]"), "spec: a QTLSBenchmark is immutable but for cancel"},
		{"with another peer", benchmark("peers: [{name: a, server: HAProxy}]"), benchmark("peers: [{name: b, server: HAProxy}]"), "spec: a QTLSBenchmark is immutable but for cancel"},
		{"with a baseline", benchmark("replicas: [1]"), benchmark("baselineRef: {name: a}"), "spec: a QTLSBenchmark is immutable but for cancel"},
		{"without one", benchmark("baselineRef: {name: a}"), benchmark("replicas: [1]"), "spec: a QTLSBenchmark is immutable but for cancel"},
		{"cancelled", benchmark("thresholds: [failures == 0]"), benchmark("thresholds: [failures == 0]\n  cancel: true"), ""},
		{"cancelled, and more", benchmark("maxDuration: 5m"), benchmark("maxDuration: 6m\n  cancel: true"), "spec: a QTLSBenchmark is immutable but for cancel"},
		{"cancelled no more", benchmark("cancel: true"), benchmark("cancel: false"), "cancel: a run that was cancelled is not taken up again"},
		{"cancelled, by another way to say how long", benchmark("maxDuration: 60m"), benchmark("maxDuration: 1h\n  cancel: true"), ""},
		{"not cancelled at all any more", benchmark("cancel: true"), benchmark("maxDuration: 60m"), "cancel: a run that was cancelled is not taken up again"},
	},
	"QTLSBenchmarkSchedule": {
		{"another template", scheduleOf(""), scheduleOf("template: {spec: {gatewayRef: {name: other}, target: {caRefs: [{name: ca}]}, modes: " + benchmarkMode("") + "}}"), ""},
	},
	"QTLSPolicy": {
		{"unchanged", full["QTLSPolicy"], full["QTLSPolicy"], ""},
		{"groups in another order", policyOf("groups: [X25519MLKEM768, x25519], signatureSchemes: [mldsa65], cipherSuites: [TLS_AES_128_GCM_SHA256]"),
			policyOf("groups: [x25519, X25519MLKEM768], signatureSchemes: [mldsa65], cipherSuites: [TLS_AES_128_GCM_SHA256]"), "a QTLSPolicy is immutable"},
		{"schemes in another order", policyOf("groups: [x25519], signatureSchemes: [mldsa65, mldsa44], cipherSuites: [TLS_AES_128_GCM_SHA256]"),
			policyOf("groups: [x25519], signatureSchemes: [mldsa44, mldsa65], cipherSuites: [TLS_AES_128_GCM_SHA256]"), "a QTLSPolicy is immutable"},
		{"suites in another order", policyOf("groups: [x25519], signatureSchemes: [mldsa65], cipherSuites: [TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384]"),
			policyOf("groups: [x25519], signatureSchemes: [mldsa65], cipherSuites: [TLS_AES_256_GCM_SHA384, TLS_AES_128_GCM_SHA256]"), "a QTLSPolicy is immutable"},
		{"changed", full["QTLSPolicy"], strings.Replace(full["QTLSPolicy"], "A policy.", "Another.", 1), "a QTLSPolicy is immutable"},
	},
	"HSMPool": {
		{"another time-out", "spec: {members: [{name: soft, softToken: {}}]}", "spec: {timeout: 2s, members: [{name: soft, softToken: {}}]}", ""},
		{"another storage", "spec: {members: [{name: soft, softToken: {}}]}", "spec: {members: [{name: soft, softToken: {storage: {ephemeral: true}}}]}", "storage: it cannot be changed"},
		{"another member", "spec: {members: [{name: soft, softToken: {}}]}", "spec: {members: [{name: other, softToken: {storage: {ephemeral: true}}}]}", ""},
	},
	"PQCCertificate": {
		{"other names", "spec: {dnsNames: [a], issuerRef: {name: a}}", "spec: {dnsNames: [b], issuerRef: {name: a}}", ""},
		{"a CA by and by", "spec: {dnsNames: [a], issuerRef: {name: a}}", "spec: {isCA: true, commonName: a, dnsNames: [a], issuerRef: {name: a}}", "isCA: immutable"},
		{"another common name", "spec: {commonName: a, dnsNames: [a], issuerRef: {name: a}}", "spec: {commonName: b, dnsNames: [a], issuerRef: {name: a}}", ""},
		{"a CA of another name", "spec: {isCA: true, commonName: a, issuerRef: {name: a}}", "spec: {isCA: true, commonName: b, issuerRef: {name: a}}", "commonName: immutable with isCA"},
		{"a CA of another issuer", "spec: {isCA: true, commonName: a, issuerRef: {name: a}}", "spec: {isCA: true, commonName: a, issuerRef: {name: b}}", ""},
		{"a CA no more", "spec: {isCA: true, commonName: a, dnsNames: [a], issuerRef: {name: a}}", "spec: {commonName: a, dnsNames: [a], issuerRef: {name: a}}", "isCA: immutable"},
	},
}

// What a daemon or a gateway needs of its container is hidden neither by the library nor by
// its files.
func TestFoldersOfALibrary(t *testing.T) {
	c := testenv.Client(t)
	const refusal = "folder: the container needs its own"
	refused := func(folder string) (library, files bool) {
		spec := vendorPool(folder, "token: gw")
		err := admit(t, c, parse(t, "HSMPool", strings.Replace(spec, "path: /opt/vendor", "path: "+folder, 1)))
		library = err != nil && strings.Contains(err.Error(), refusal)
		if err != nil && !library {
			t.Errorf("a library in %s: %v", folder, err)
		}
		err = admit(t, c, parse(t, "HSMPool", vendorPool("/other/vendor", "token: gw", "files: [{folder: "+folder+", secretRef: {name: a}}]")))
		return library, err != nil && strings.Contains(err.Error(), refusal)
	}
	for folder, want := range map[string]bool{
		"/bin": true, "/usr/bin": true, "/usr/sbin/vendor": true, "/dev": true, "/dev/shm": true, "/proc": true, "/proc/self": true, "/sys/bus": true,
		"/etc": true, "/etc/hosts": true, "/etc/hsmd": true, "/etc/hsmd/more": true, "/etc/vendor": false, "/etc/hsmd-vendor": false,
		"/lib": true, "/lib64": true, "/usr": true, "/usr/lib": true, "/lib/x86_64-linux-gnu": true, "/usr/lib/x86_64-linux-gnu": true, "/usr/lib/aarch64-linux-gnu": true,
		"/usr/lib/x86_64-linux-gnu/vendor": false, "/usr/lib/vendor": false, "/usr/local/lib": false, "/usr/safenet/lunaclient": false,
		"/run": true, "/run/secrets": true, "/run/secrets/hsmd": true, "/run/secrets/token": true, "/run/secrets/token/pin": true, "/var/run/secrets/hsmd": true, "/run/secrets/vendor": false,
		"/tmp": true, "/var": true, "/var/lib": true, "/var/lib/vendor": false, "/opt/nfast/kmdata": false,
	} {
		if library, files := refused(folder); library != want || files != want {
			t.Errorf("%s: refused for the library %t and for files %t, want %t", folder, library, files, want)
		}
	}
}
