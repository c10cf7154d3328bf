package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"qtls.dev/qtls/api/v1alpha1"
)

// named is the metadata of an object; a cluster's has no namespace.
func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func conditions(is ...string) []metav1.Condition {
	var all []metav1.Condition
	for _, c := range is {
		kind, status, _ := strings.Cut(c, "=")
		all = append(all, metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status)})
	}
	return all
}

// operators make the metrics of objects, for an operator that leads and one that
// does not yet.
func operators(t *testing.T, objects ...client.Object) (c client.Client, leader, standby *Objects) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	elected := make(chan struct{})
	close(elected)
	return c, &Objects{Reader: c, Elected: elected, Benchmarks: true}, &Objects{Reader: c, Elected: make(chan struct{}), Benchmarks: true}
}

func expect(t *testing.T, o *Objects, want string, names ...string) {
	t.Helper()
	if err := testutil.CollectAndCompare(o, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestAGatewayThatIsToHaveNoPodsIsToldApart(t *testing.T) {
	_, leader, _ := operators(t, &v1alpha1.QTLSGateway{ObjectMeta: named("shop", "web")},
		&v1alpha1.QTLSGateway{ObjectMeta: named("shop", "off"), Spec: v1alpha1.QTLSGatewaySpec{Replicas: new(int32)}})
	expect(t, leader, `
# HELP qtls_gateway_replicas Pods that the QTLSGateway is to have.
# TYPE qtls_gateway_replicas gauge
qtls_gateway_replicas{name="off",namespace="shop"} 0
qtls_gateway_replicas{name="web",namespace="shop"} 2
`, "qtls_gateway_replicas")
}

func TestEachConditionIsToldWithEachStatus(t *testing.T) {
	_, leader, _ := operators(t, &v1alpha1.QTLSGateway{ObjectMeta: named("shop", "web"), Status: v1alpha1.QTLSGatewayStatus{Conditions: conditions("Ready=False", "Programmed=Unknown")}})
	expect(t, leader, `
# HELP qtls_object_status_condition 1 for the status that the condition of the object has, 0 for the others.
# TYPE qtls_object_status_condition gauge
qtls_object_status_condition{kind="QTLSGateway",name="web",namespace="shop",status="False",type="Programmed"} 0
qtls_object_status_condition{kind="QTLSGateway",name="web",namespace="shop",status="False",type="Ready"} 1
qtls_object_status_condition{kind="QTLSGateway",name="web",namespace="shop",status="True",type="Programmed"} 0
qtls_object_status_condition{kind="QTLSGateway",name="web",namespace="shop",status="True",type="Ready"} 0
qtls_object_status_condition{kind="QTLSGateway",name="web",namespace="shop",status="Unknown",type="Programmed"} 1
qtls_object_status_condition{kind="QTLSGateway",name="web",namespace="shop",status="Unknown",type="Ready"} 0
`, "qtls_object_status_condition")
}

func TestConditionsOfEveryKindAreTold(t *testing.T) {
	ready := conditions("Ready=True")
	every := []client.Object{
		&v1alpha1.QTLSGateway{ObjectMeta: named("a", "gateway"), Status: v1alpha1.QTLSGatewayStatus{Conditions: ready}},
		&v1alpha1.PQCCertificate{ObjectMeta: named("a", "certificate"), Status: v1alpha1.PQCCertificateStatus{Conditions: ready}},
		&v1alpha1.PQCIssuer{ObjectMeta: named("a", "issuer"), Status: v1alpha1.IssuerStatus{Conditions: ready}},
		&v1alpha1.PQCClusterIssuer{ObjectMeta: named("", "issuer"), Status: v1alpha1.IssuerStatus{Conditions: ready}},
		&v1alpha1.HSMPool{ObjectMeta: named("a", "pool"), Status: v1alpha1.HSMPoolStatus{Conditions: ready}},
		&v1alpha1.QTLSBenchmark{ObjectMeta: named("a", "benchmark"), Status: v1alpha1.QTLSBenchmarkStatus{Conditions: ready}},
		&v1alpha1.QTLSBenchmarkSchedule{ObjectMeta: named("a", "schedule"), Status: v1alpha1.QTLSBenchmarkScheduleStatus{Conditions: ready}},
	}
	_, leader, _ := operators(t, every...)
	for benchmarks, kinds := range map[bool]int{true: 7, false: 5} {
		leader.Benchmarks = benchmarks
		if got := testutil.CollectAndCount(leader, "qtls_object_status_condition"); got != kinds*len(statuses) {
			t.Errorf("benchmarks %t: %d series, want those of %d kinds", benchmarks, got, kinds)
		}
	}
}

func TestWhenCertificatesEndAndAreRenewed(t *testing.T) {
	at := func(seconds int64) *metav1.Time { return new(metav1.NewTime(time.Unix(seconds, 0))) }
	_, leader, _ := operators(t, &v1alpha1.PQCCertificate{ObjectMeta: named("shop", "web"), Status: v1alpha1.PQCCertificateStatus{Certificates: []v1alpha1.IssuedCertificate{
		{Algorithm: "ML-DSA-65", SecretName: "web-ml-dsa-65", NotAfter: at(300), RenewalTime: at(200)},
		{Algorithm: "ECDSA-P256", SecretName: "web-ecdsa-p256", NotAfter: at(400)}, // of no use: it is not renewed but replaced
		{Algorithm: "RSA-2048", SecretName: "web-rsa-2048"},                        // not issued yet
	}}})
	expect(t, leader, `
# HELP qtls_certificate_not_after_timestamp_seconds End of validity of a certificate of the PQCCertificate, in Unix time.
# TYPE qtls_certificate_not_after_timestamp_seconds gauge
qtls_certificate_not_after_timestamp_seconds{algorithm="ECDSA-P256",name="web",namespace="shop",secret="web-ecdsa-p256"} 400
qtls_certificate_not_after_timestamp_seconds{algorithm="ML-DSA-65",name="web",namespace="shop",secret="web-ml-dsa-65"} 300
# HELP qtls_certificate_renewal_timestamp_seconds When a certificate of the PQCCertificate is due for renewal, in Unix time.
# TYPE qtls_certificate_renewal_timestamp_seconds gauge
qtls_certificate_renewal_timestamp_seconds{algorithm="ML-DSA-65",name="web",namespace="shop",secret="web-ml-dsa-65"} 200
`)
}

func TestWhenAuthoritiesEnd(t *testing.T) {
	status := v1alpha1.IssuerStatus{Authorities: []v1alpha1.Authority{
		{SecretName: "root", Algorithm: "ML-DSA-87", NotAfter: metav1.NewTime(time.Unix(500, 0))},
		{SecretName: "classical", Algorithm: "ECDSA-P384", NotAfter: metav1.NewTime(time.Unix(600, 0))},
	}}
	_, leader, _ := operators(t,
		&v1alpha1.PQCIssuer{ObjectMeta: named("shop", "ca"), Status: status},
		&v1alpha1.PQCClusterIssuer{ObjectMeta: named("", "ca"), Status: status})
	expect(t, leader, `
# HELP qtls_issuer_authority_not_after_timestamp_seconds End of validity of an authority that the issuer signs with, in Unix time.
# TYPE qtls_issuer_authority_not_after_timestamp_seconds gauge
qtls_issuer_authority_not_after_timestamp_seconds{algorithm="ECDSA-P384",kind="PQCClusterIssuer",name="ca",namespace="",secret="classical"} 600
qtls_issuer_authority_not_after_timestamp_seconds{algorithm="ECDSA-P384",kind="PQCIssuer",name="ca",namespace="shop",secret="classical"} 600
qtls_issuer_authority_not_after_timestamp_seconds{algorithm="ML-DSA-87",kind="PQCClusterIssuer",name="ca",namespace="",secret="root"} 500
qtls_issuer_authority_not_after_timestamp_seconds{algorithm="ML-DSA-87",kind="PQCIssuer",name="ca",namespace="shop",secret="root"} 500
`)
}

func TestWhichMembersOfAPoolAreUp(t *testing.T) {
	_, leader, _ := operators(t, &v1alpha1.HSMPool{ObjectMeta: named("shop", "vault"), Status: v1alpha1.HSMPoolStatus{Members: []v1alpha1.HSMMemberStatus{
		{Name: "a", State: v1alpha1.HSMMemberUp}, {Name: "b", State: v1alpha1.HSMMemberDown}, {Name: "c", State: v1alpha1.HSMMemberUnknown}}}})
	expect(t, leader, `
# HELP qtls_hsmpool_member_up 1 while the member of the HSMPool can sign for the operator, else 0.
# TYPE qtls_hsmpool_member_up gauge
qtls_hsmpool_member_up{member="a",name="vault",namespace="shop"} 1
qtls_hsmpool_member_up{member="b",name="vault",namespace="shop"} 0
qtls_hsmpool_member_up{member="c",name="vault",namespace="shop"} 0
`)
}

func TestADeletedObjectLeavesNoSeries(t *testing.T) {
	pool := &v1alpha1.HSMPool{ObjectMeta: named("shop", "vault"), Status: v1alpha1.HSMPoolStatus{
		Conditions: conditions("Ready=True"), Members: []v1alpha1.HSMMemberStatus{{Name: "a", State: v1alpha1.HSMMemberUp}}}}
	c, leader, _ := operators(t, pool)
	if got := testutil.CollectAndCount(leader); got != 4 {
		t.Errorf("%d series, want three of the condition and one of the member", got)
	}
	if err := c.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if got := testutil.CollectAndCount(leader); got != 0 {
		t.Errorf("%d series are left", got)
	}
}

func TestOnlyTheLeaderTells(t *testing.T) {
	_, leader, standby := operators(t, &v1alpha1.QTLSGateway{ObjectMeta: named("shop", "web"), Status: v1alpha1.QTLSGatewayStatus{Conditions: conditions("Ready=True")}})
	if got := testutil.CollectAndCount(leader); got != 4 {
		t.Errorf("the leader tells %d series, want 4", got)
	}
	if got := testutil.CollectAndCount(standby); got != 0 {
		t.Errorf("one that stands by tells %d series", got)
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	_, leader, _ := operators(t,
		&v1alpha1.PQCCertificate{ObjectMeta: named("a", "b"), Status: v1alpha1.PQCCertificateStatus{Conditions: conditions("Ready=True"),
			Certificates: []v1alpha1.IssuedCertificate{{NotAfter: new(metav1.Now()), RenewalTime: new(metav1.Now())}}}},
		&v1alpha1.PQCIssuer{ObjectMeta: named("a", "b"), Status: v1alpha1.IssuerStatus{Authorities: []v1alpha1.Authority{{NotAfter: metav1.Now()}}}},
		&v1alpha1.HSMPool{ObjectMeta: named("a", "b"), Status: v1alpha1.HSMPoolStatus{Members: []v1alpha1.HSMMemberStatus{{Name: "c"}}}})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(leader)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
