// Package metrics tells Prometheus what the operator alone knows: how its
// objects stand, and when certificates end. All names of its metrics are here.
package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/resources"
)

var (
	condition = prometheus.NewDesc("qtls_object_status_condition",
		"1 for the status that the condition of the object has, 0 for the others.",
		[]string{"kind", "namespace", "name", "type", "status"}, nil)
	replicas = prometheus.NewDesc("qtls_gateway_replicas",
		"Pods that the QTLSGateway is to have.",
		[]string{"namespace", "name"}, nil)
	certificateNotAfter = prometheus.NewDesc("qtls_certificate_not_after_timestamp_seconds",
		"End of validity of a certificate of the PQCCertificate, in Unix time.",
		[]string{"namespace", "name", "algorithm", "secret"}, nil)
	certificateRenewal = prometheus.NewDesc("qtls_certificate_renewal_timestamp_seconds",
		"When a certificate of the PQCCertificate is due for renewal, in Unix time.",
		[]string{"namespace", "name", "algorithm", "secret"}, nil)
	authorityNotAfter = prometheus.NewDesc("qtls_issuer_authority_not_after_timestamp_seconds",
		"End of validity of an authority that the issuer signs with, in Unix time.",
		[]string{"kind", "namespace", "name", "algorithm", "secret"}, nil)
	memberUp = prometheus.NewDesc("qtls_hsmpool_member_up",
		"1 while the member of the HSMPool can sign for the operator, else 0.",
		[]string{"namespace", "name", "member"}, nil)
)

// statuses that a condition may have.
var statuses = []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown}

// scrapeTimeout bounds what a cache that is not filled yet costs a scrape.
const scrapeTimeout = 2 * time.Second

// Objects are read when Prometheus asks, so that no metric is older than the
// cache, and none stays of an object that is deleted.
type Objects struct {
	// Reader is the manager's cache.
	Reader client.Reader
	// Elected is closed once this operator leads. Before it tells nothing: each
	// series is there once, however many operators stand by, and these need not
	// keep the objects in memory.
	Elected <-chan struct{}
	// Benchmarks are looked at: otherwise they may not even be listed.
	Benchmarks bool
}

// Describe implements prometheus.Collector.
func (o *Objects) Describe(d chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{condition, replicas, certificateNotAfter, certificateRenewal, authorityNotAfter, memberUp} {
		d <- desc
	}
}

// Collect implements prometheus.Collector.
func (o *Objects) Collect(out chan<- prometheus.Metric) {
	select {
	case <-o.Elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	for _, list := range o.lists() {
		err := o.Reader.List(ctx, list, client.UnsafeDisableDeepCopy) // they are only read
		if err == nil {
			err = meta.EachListItem(list, func(item runtime.Object) error {
				tell(out, item)
				return nil
			})
		}
		if err != nil {
			ctrl.Log.WithName("metrics").Error(err, "a scrape goes without the metrics of some objects", "list", fmt.Sprintf("%T", list))
		}
	}
}

// lists of the kinds whose status has conditions.
func (o *Objects) lists() []client.ObjectList {
	all := []client.ObjectList{
		&v1alpha1.QTLSGatewayList{}, &v1alpha1.PQCCertificateList{}, &v1alpha1.PQCIssuerList{}, &v1alpha1.PQCClusterIssuerList{}, &v1alpha1.HSMPoolList{},
	}
	if o.Benchmarks {
		all = append(all, &v1alpha1.QTLSBenchmarkList{}, &v1alpha1.QTLSBenchmarkScheduleList{})
	}
	return all
}

// tell of one object.
func tell(out chan<- prometheus.Metric, o runtime.Object) {
	switch o := o.(type) {
	case *v1alpha1.QTLSGateway:
		tellConditions(out, "QTLSGateway", o, o.Status.Conditions)
		gauge(out, replicas, float64(resources.Replicas(o)), o.Namespace, o.Name)
	case *v1alpha1.PQCCertificate:
		tellConditions(out, "PQCCertificate", o, o.Status.Conditions)
		for _, c := range o.Status.Certificates {
			labels := []string{o.Namespace, o.Name, string(c.Algorithm), c.SecretName}
			tellTime(out, certificateNotAfter, c.NotAfter, labels...)
			tellTime(out, certificateRenewal, c.RenewalTime, labels...)
		}
	case *v1alpha1.PQCIssuer:
		tellIssuer(out, issuers.Kind, o)
	case *v1alpha1.PQCClusterIssuer:
		tellIssuer(out, issuers.ClusterKind, o)
	case *v1alpha1.HSMPool:
		tellConditions(out, "HSMPool", o, o.Status.Conditions)
		for _, m := range o.Status.Members {
			gauge(out, memberUp, truth(m.State == v1alpha1.HSMMemberUp), o.Namespace, o.Name, m.Name)
		}
	case *v1alpha1.QTLSBenchmark:
		tellConditions(out, "QTLSBenchmark", o, o.Status.Conditions)
	case *v1alpha1.QTLSBenchmarkSchedule:
		tellConditions(out, "QTLSBenchmarkSchedule", o, o.Status.Conditions)
	}
}

func tellIssuer(out chan<- prometheus.Metric, kind string, issuer client.Object) {
	_, status := issuers.Parts(issuer)
	tellConditions(out, kind, issuer, status.Conditions)
	for _, a := range status.Authorities {
		tellTime(out, authorityNotAfter, &a.NotAfter, kind, issuer.GetNamespace(), issuer.GetName(), a.Algorithm, a.SecretName)
	}
}

func tellConditions(out chan<- prometheus.Metric, kind string, o client.Object, conditions []metav1.Condition) {
	for _, c := range conditions {
		for _, status := range statuses {
			gauge(out, condition, truth(c.Status == status), kind, o.GetNamespace(), o.GetName(), c.Type, string(status))
		}
	}
}

// tellTime of what has one.
func tellTime(out chan<- prometheus.Metric, d *prometheus.Desc, t *metav1.Time, labels ...string) {
	if !t.IsZero() {
		gauge(out, d, float64(t.Unix()), labels...)
	}
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
