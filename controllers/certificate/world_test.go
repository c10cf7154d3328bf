//go:build integration

package certificate_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/controllers/certificate"
	"qtls.dev/qtls/controllers/issuer"
	"qtls.dev/qtls/controllers/request"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a namespace with an operator in it, and a person who approves.
type world struct {
	client.Client
	t         *testing.T
	namespace string
	// served namespaces; the operator has rights in these alone.
	served []string
	clock  *clocktesting.FakePassiveClock
	// approving says that every CertificateRequest is approved.
	approving bool
	// stop the operator.
	stop func()
	// events that the operator told.
	events *events.FakeRecorder
	// agents of gateways' pods.
	agents *agents
	// unreadable says that the operator can read no Secret for the moment.
	unreadable atomic.Bool
	// withoutWebhook says that cert-manager's webhook does not answer.
	withoutWebhook atomic.Bool
}

func newWorld(t *testing.T) *world {
	w := stoppedWorld(t)
	w.start(nil)
	return w
}

func stoppedWorld(t *testing.T) *world {
	c := testenv.Client(t)
	namespace := testenv.Namespace(t, c)
	return &world{
		Client: c, t: t, namespace: namespace, served: []string{namespace}, approving: true,
		clock:  clocktesting.NewFakePassiveClock(time.Now().Truncate(time.Second)),
		events: events.NewFakeRecorder(10_000), agents: &agents{says: map[types.UID]*dataplane.Status{}},
	}
}

// agents of pods, and what each says.
type agents struct {
	mu   sync.Mutex
	says map[types.UID]*dataplane.Status
}

func (a *agents) Status(_ types.NamespacedName, pod types.UID) (*dataplane.Status, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if status := a.says[pod]; status != nil {
		return status, nil
	}
	return nil, errors.New("connection refused")
}

// serves has a pod's agent say that it signs with keys in HSMs.
func (a *agents) serves(pod *corev1.Pod, keys ...keypair.Reference) {
	a.mu.Lock()
	defer a.mu.Unlock()
	status := &dataplane.Status{Running: dataplane.Target{Revision: "r"}, HSMKeys: []string{}}
	for _, k := range keys {
		status.HSMKeys = append(status.HSMKeys, k.URI())
	}
	a.says[pod.UID] = status
}

// silent has a pod's agent say nothing any more.
func (a *agents) silent(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.says, pod.UID)
}

// start an operator. With fuse, its writes fail when that burns.
func (w *world) start(fuse *fuse) {
	w.t.Helper()
	mgr := testenv.Manager(w.t, func(o *ctrl.Options) {
		o.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, n := range w.served {
			o.Cache.DefaultNamespaces[n] = cache.Config{}
		}
		o.NewClient = func(config *rest.Config, options client.Options) (client.Client, error) {
			c, err := client.New(config, options)
			return &fused{Client: c, fuse: fuse, withoutWebhook: &w.withoutWebhook}, err
		}
	})
	hsms := &hsmpool.Clients{}
	for _, r := range []interface{ SetupWithManager(ctrl.Manager) error }{
		&issuer.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: w.clock, Namespace: w.namespace, Recorder: w.events, HSMs: hsms},
		&request.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: w.clock, Namespace: w.namespace, Recorder: w.events, HSMs: hsms},
		&certificate.Reconciler{Client: mgr.GetClient(), APIReader: namespaced{mgr.GetAPIReader(), w.served, &w.unreadable}, Namespaces: w.served, Clock: w.clock, Recorder: w.events, HSMs: hsms, Agents: w.agents},
	} {
		if err := r.SetupWithManager(mgr); err != nil {
			w.t.Fatal(err)
		}
	}
	w.stop = testenv.Start(w.t, mgr)
}

// namespaced reads as with a Role in each of some namespaces.
type namespaced struct {
	client.Reader
	served     []string
	unreadable *atomic.Bool
}

func (r namespaced) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, secret := o.(*corev1.Secret); secret && r.unreadable.Load() {
		return apierrors.NewInternalError(errors.New("etcd is away"))
	}
	return r.Reader.Get(ctx, key, o, options...)
}

func (r namespaced) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if o := (&client.ListOptions{}).ApplyOptions(options); !slices.Contains(r.served, o.Namespace) {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("no right to list %T in namespace %q", list, o.Namespace))
	}
	return r.Reader.List(ctx, list, options...)
}

// create objects in the world's namespace.
func (w *world) create(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		o.SetNamespace(w.namespace)
		if err := w.Create(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
}

// change an object as it is now.
func (w *world) change(o client.Object, f func()) {
	w.t.Helper()
	w.get(o)
	before := o.DeepCopyObject().(client.Object)
	f()
	if err := w.Patch(w.t.Context(), o, client.MergeFrom(before)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get(o client.Object) {
	w.t.Helper()
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits until check is content, and approves what there is to
// approve meanwhile.
func (w *world) eventually(check func() error) {
	w.t.Helper()
	testenv.Eventually(w.t, func(context.Context) error {
		w.approve()
		return check()
	})
}

// approve what is not approved, if the world does.
func (w *world) approve() {
	w.t.Helper()
	if !w.approving {
		return
	}
	for _, cr := range w.requests() {
		if len(cr.Status.Conditions) == 0 {
			w.decide(&cr, cmapi.CertificateRequestConditionApproved, "test", "approved by the test")
		}
	}
}

// decide on a request, as an approver does.
func (w *world) decide(cr *cmapi.CertificateRequest, kind cmapi.CertificateRequestConditionType, reason, message string) {
	w.t.Helper()
	cr.Status.Conditions = append(cr.Status.Conditions, cmapi.CertificateRequestCondition{
		Type: kind, Status: cmmeta.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: new(metav1.NewTime(w.clock.Now()))})
	if err := w.Status().Update(w.t.Context(), cr); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
}

func (w *world) requests() []cmapi.CertificateRequest {
	w.t.Helper()
	var list cmapi.CertificateRequestList
	if err := w.List(w.t.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// request waits for the only CertificateRequest that is still open.
func (w *world) request() *cmapi.CertificateRequest {
	w.t.Helper()
	var open *cmapi.CertificateRequest
	w.eventually(func() error {
		for _, cr := range w.requests() {
			if len(cr.Status.Certificate) == 0 {
				open = &cr
				return nil
			}
		}
		return errors.New("there is no open CertificateRequest")
	})
	return open
}

func (w *world) secret(name string) *corev1.Secret {
	w.t.Helper()
	s := &corev1.Secret{}
	if err := w.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) secretNames() []string {
	w.t.Helper()
	var list corev1.SecretList
	if err := w.List(w.t.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

// pair reads a certificate's Secret.
func (w *world) pair(name string) *keypair.KeyPair {
	w.t.Helper()
	s := w.secret(name)
	pair, err := keypair.Parse(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		w.t.Fatalf("Secret %s: %v", name, err)
	}
	return pair
}

// condition waits until a PQCCertificate says something of its present
// generation, and returns it.
func (w *world) condition(c *v1alpha1.PQCCertificate, kind string, status metav1.ConditionStatus, reason string) *metav1.Condition {
	w.t.Helper()
	var found *metav1.Condition
	w.eventually(func() error {
		w.get(c)
		found = meta.FindStatusCondition(c.Status.Conditions, kind)
		if found == nil || found.Status != status || found.Reason != reason || found.ObservedGeneration != c.Generation {
			return fmt.Errorf("condition %s of PQCCertificate %s is not %s for %s: %+v", kind, c.Name, status, reason, c.Status.Conditions)
		}
		return nil
	})
	return found
}

// issued waits until a PQCCertificate is ready and nothing is under way.
func (w *world) issued(c *v1alpha1.PQCCertificate) {
	w.t.Helper()
	w.condition(c, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	w.condition(c, v1alpha1.ConditionIssuing, metav1.ConditionFalse, v1alpha1.ReasonIssued)
}

// revision waits until every certificate has come to a revision.
func (w *world) revision(c *v1alpha1.PQCCertificate, revision int64) {
	w.t.Helper()
	w.eventually(func() error {
		w.get(c)
		if len(c.Status.Certificates) != len(c.Spec.Algorithms) {
			return fmt.Errorf("status says %d certificates", len(c.Status.Certificates))
		}
		for _, i := range c.Status.Certificates {
			if i.Revision != revision || i.RequestName != "" {
				return fmt.Errorf("%s is at revision %d (request %q), not %d: %+v", i.Algorithm, i.Revision, i.RequestName, revision, c.Status.Conditions)
			}
		}
		return nil
	})
	w.issued(c)
}

// pass lets time pass, and wakes the operator.
func (w *world) pass(c *v1alpha1.PQCCertificate, d time.Duration) {
	w.t.Helper()
	w.clock.SetTime(w.clock.Now().Add(d))
	w.change(c, func() { annotate(c, "test/wake", w.clock.Now().String()) })
}

func annotate(o client.Object, key, value string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	o.SetAnnotations(annotations)
}

// verify a certificate's chain from its ca.crt, as a client does.
func (w *world) verify(secretName, hostname string) {
	w.t.Helper()
	pair := w.pair(secretName)
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(w.secret(secretName).Data["ca.crt"]) {
		w.t.Fatalf("Secret %s: ca.crt holds no certificate", secretName)
	}
	for _, c := range pair.Chain[1:] {
		intermediates.AddCert(c)
	}
	if _, err := pair.Chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, DNSName: hostname, CurrentTime: w.clock.Now()}); err != nil {
		w.t.Errorf("Secret %s: %v", secretName, err)
	}
}

// told are the events since it was asked last.
func (w *world) told() []string {
	var texts []string
	for {
		select {
		case e := <-w.events.Events:
			texts = append(texts, e)
		default:
			return texts
		}
	}
}

// secretsStaySecret looks for key material where none belongs.
func (w *world) secretsStaySecret() {
	w.t.Helper()
	texts := w.told()
	var certificates v1alpha1.PQCCertificateList
	if err := w.List(w.t.Context(), &certificates, client.InNamespace(w.namespace)); err != nil {
		w.t.Fatal(err)
	}
	for _, c := range certificates.Items {
		texts = append(texts, fmt.Sprintf("%+v", c))
	}
	for _, cr := range w.requests() {
		texts = append(texts, fmt.Sprintf("%+v %+v", cr.ObjectMeta, cr.Status.Conditions))
	}
	for _, text := range texts {
		if strings.Contains(text, "PRIVATE KEY") {
			w.t.Errorf("key material in %.200s", text)
		}
	}
}

func selfSigned(name string) *v1alpha1.PQCIssuer {
	return &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}
}

func caIssuer(name string, secrets ...string) *v1alpha1.PQCIssuer {
	ca := &v1alpha1.CAIssuer{}
	for _, s := range secrets {
		ca.SecretRefs = append(ca.SecretRefs, v1alpha1.SecretReference{Name: s})
	}
	return &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IssuerSpec{CA: ca}}
}

func ca(name, issuer string, algorithms ...v1alpha1.KeyAlgorithm) *v1alpha1.PQCCertificate {
	return &v1alpha1.PQCCertificate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PQCCertificateSpec{
		CommonName: "Test " + name, IsCA: true, Algorithms: algorithms, Duration: &metav1.Duration{Duration: 87600 * time.Hour},
		IssuerRef: v1alpha1.IssuerReference{Name: issuer}}}
}

func server(name, issuer string, algorithms ...v1alpha1.KeyAlgorithm) *v1alpha1.PQCCertificate {
	return &v1alpha1.PQCCertificate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PQCCertificateSpec{
		DNSNames: []v1alpha1.Hostname{"www.example.com", "*.example.org"}, IPAddresses: []string{"192.0.2.1", "2001:db8::1"}, Algorithms: algorithms,
		IssuerRef: v1alpha1.IssuerReference{Name: issuer}}}
}

// withCA makes a world with an issuer "ca" that has both families.
func withCA(t *testing.T) *world {
	w := newWorld(t)
	root := ca("root", "self", "ML-DSA-65", "ECDSA-P256")
	w.create(selfSigned("self"), root, caIssuer("ca", "root-ml-dsa-65", "root-ecdsa-p256"))
	w.issued(root)
	return w
}

// errKilled is what a killed operator gets from its client.
var errKilled = errors.New("the operator is being killed")

// fuse lets so many writes through, and none after that. If late, the last one
// is carried out and reported as failed, as when the answer is lost.
type fuse struct {
	left atomic.Int64
	late bool
}

func newFuse(writes int, late bool) *fuse {
	f := &fuse{late: late}
	f.left.Store(int64(writes))
	return f
}

func (f *fuse) burnt() bool { return f != nil && f.left.Load() < 0 }

func (f *fuse) write(do func() error) error {
	if f == nil {
		return do()
	}
	left := f.left.Add(-1)
	if left < 0 && !(f.late && left == -1) {
		return errKilled
	}
	if err := do(); err != nil {
		return err
	}
	if left < 0 {
		return errKilled
	}
	return nil
}

// fused is a client whose writes a fuse guards.
type fused struct {
	client.Client
	fuse           *fuse
	withoutWebhook *atomic.Bool
}

func (c *fused) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if _, request := o.(*cmapi.CertificateRequest); request && c.withoutWebhook.Load() {
		return apierrors.NewInternalError(errors.New(`failed calling webhook "webhook.cert-manager.io": no endpoints available for service "cert-manager-webhook"`))
	}
	return c.fuse.write(func() error { return c.Client.Create(ctx, o, opts...) })
}

// unseen marks what the operator's cache does not show yet.
const unseen = "test/unseen"

// List what the cache shows.
func (c *fused) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := c.Client.List(ctx, list, opts...)
	if all, ok := list.(*v1alpha1.PQCCertificateList); ok {
		all.Items = slices.DeleteFunc(all.Items, func(c v1alpha1.PQCCertificate) bool { return c.Annotations[unseen] != "" })
	}
	return err
}

func (c *fused) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return c.fuse.write(func() error { return c.Client.Delete(ctx, o, opts...) })
}

func (c *fused) Apply(ctx context.Context, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return c.fuse.write(func() error { return c.Client.Apply(ctx, o, opts...) })
}

func (c *fused) Status() client.SubResourceWriter {
	return &fusedStatus{c.Client.Status(), c.fuse}
}

type fusedStatus struct {
	client.SubResourceWriter
	fuse *fuse
}

func (s *fusedStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return s.fuse.write(func() error { return s.SubResourceWriter.Patch(ctx, o, patch, opts...) })
}

func (s *fusedStatus) Apply(ctx context.Context, o runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	return s.fuse.write(func() error { return s.SubResourceWriter.Apply(ctx, o, opts...) })
}

func sameKey(a, b *keypair.KeyPair) bool {
	return bytes.Equal(a.Chain[0].RawSubjectPublicKeyInfo, b.Chain[0].RawSubjectPublicKeyInfo)
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}
