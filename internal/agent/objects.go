package agent

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// KubernetesObjects reads objects of one namespace from the API server. Each
// is watched by its name: the agent's Role names exactly the objects that it
// may read.
type KubernetesObjects struct {
	client    rest.Interface
	namespace string
}

// NewKubernetesObjects prepares a client that knows the core types alone, which
// is a fraction of what a whole clientset holds in memory.
func NewKubernetesObjects(config *rest.Config, namespace string) (*KubernetesObjects, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &KubernetesObjects{client: client, namespace: namespace}, nil
}

// ConfigMap delivers a ConfigMap and its changes.
func (k *KubernetesObjects) ConfigMap(ctx context.Context, name string, deliver func(*corev1.ConfigMap, error)) {
	follow(ctx, k, "configmaps", name, deliver)
}

// Secret delivers a Secret and its changes.
func (k *KubernetesObjects) Secret(ctx context.Context, name string, deliver func(*corev1.Secret, error)) {
	follow(ctx, k, "secrets", name, deliver)
}

const (
	// watchRetryFirst to watchRetryMost space the tries of a watch that fails.
	// The first are close together: the Role that allows it may be made at the
	// same time as the pod.
	watchRetryFirst, watchRetryMost = 100 * time.Millisecond, 5 * time.Second
)

// object is a pointer to a type of the API.
type object[T any] interface {
	*T
	runtime.Object
}

// follow one object until the context ends.
func follow[T any, P object[T]](ctx context.Context, k *KubernetesObjects, resource, name string, deliver func(P, error)) {
	one := cache.NewListWatchFromClient(k.client, resource, k.namespace, fields.OneTermEqualSelector("metadata.name", name))
	retry := watchRetryFirst
	last := latest[T, P]{deliver: func(o P) {
		retry = watchRetryFirst
		deliver(o, nil)
	}}
	for ctx.Err() == nil {
		if err := followOnce(ctx, one, P(new(T)), &last, resource+"/"+name); err != nil && ctx.Err() == nil {
			deliver(nil, readingError(err))
		}
		_ = sleep(ctx, retry) // whether the context has ended is asked above
		retry = min(2*retry, watchRetryMost)
	}
}

// followOnce follows an object until it cannot be read. A Reflector alone would
// go on trying, and not tell.
func followOnce(ctx context.Context, one *cache.ListWatch, example runtime.Object, store cache.ReflectorStore, name string) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	reflector := cache.NewReflectorWithOptions(failing{one, fail}, example, store, cache.ReflectorOptions{Name: name})
	err := reflector.ListAndWatchWithContext(ctx)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// failing tells of a watch that cannot be opened.
type failing struct {
	*cache.ListWatch
	fail context.CancelCauseFunc
}

func (f failing) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := f.ListWatch.WatchWithContext(ctx, o)
	// A server that does not stream lists says so: the Reflector then lists.
	// One that has forgotten the version that was seen last is listed anew, too.
	if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		f.fail(err)
	}
	return w, err
}

// readingError says what a failure means to whoever reads the status.
func readingError(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return errors.New("the agent's Role does not allow it yet")
	case apierrors.IsUnauthorized(err):
		return errors.New("the API server does not accept the agent's token")
	case apierrors.ReasonForError(err) != "":
		return err
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // the address with all its parameters is of no use to the reader
	}
	return fmt.Errorf("the API server is not reached: %w", err)
}

// latest is a store of one object that keeps none: it passes each state on.
type latest[T any, P object[T]] struct{ deliver func(P) }

func (l *latest[T, P]) Add(o any) error    { l.deliver(o.(P)); return nil }
func (l *latest[T, P]) Update(o any) error { l.deliver(o.(P)); return nil }
func (l *latest[T, P]) Delete(any) error   { l.deliver(nil); return nil }
func (l *latest[T, P]) Resync() error      { return nil }

func (l *latest[T, P]) Replace(list []any, _ string) error {
	if len(list) == 0 {
		l.deliver(nil)
		return nil
	}
	return l.Add(list[0])
}
