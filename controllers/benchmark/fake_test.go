package benchmark

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/testcert"
)

// onFake is a reconciler at noon, on a client that has these objects and does what
// calls says.
func onFake(t *testing.T, calls interceptor.Funcs, objects ...client.Object) *Reconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.QTLSBenchmark{}).WithObjects(objects...).WithInterceptorFuncs(calls).
		WithIndex(&v1alpha1.QTLSBenchmark{}, gatewayIndex, func(o client.Object) []string {
			return []string{o.(*v1alpha1.QTLSBenchmark).Spec.GatewayRef.Name}
		}).Build()
	return &Reconciler{Client: c, APIReader: c, Clock: clocktesting.NewFakePassiveClock(noon), Recorder: events.NewFakeRecorder(100), Limits: plan.DefaultLimits}
}

// authority is the certificate of one, which is valid whatever the clock says.
func authority(t *testing.T) string {
	t.Helper()
	key := testcert.Key(t, "ECDSA-P256")
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotBefore: noon.AddDate(-10, 0, 0), NotAfter: noon.AddDate(100, 0, 0)}
	return string(testcert.PEM(testcert.Sign(t, template, template, key.Public(), key)))
}

// pairIn is a Secret with a key, and a certificate of it for web.example.com.
func pairIn(t *testing.T, namespace, name string, algorithm v1alpha1.KeyAlgorithm) *corev1.Secret {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "web"}, DNSNames: []string{"web.example.com"}, NotBefore: noon.AddDate(-10, 0, 0), NotAfter: noon.AddDate(100, 0, 0)}
	return testcert.Secret(t, namespace, name, template, testcert.Key(t, algorithm))
}

// sampledJob has what one pod was when its window began and ended.
func sampledJob(t *testing.T, begin, end sample) *batchv1.Job {
	t.Helper()
	job := &batchv1.Job{}
	for which, s := range map[string]sample{v1alpha1.AnnotationUsageBegin: begin, v1alpha1.AnnotationUsageEnd: end} {
		text, err := samples{"a": s}.text()
		if err != nil {
			t.Fatal(err)
		}
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, which, text)
	}
	return job
}
