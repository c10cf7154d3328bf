package conditions

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

// server answers a status patch and keeps it.
type server struct {
	client.SubResourceWriter
	answer error
	patch  string
}

func (s *server) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	content, err := p.Data(o)
	s.patch = string(content)
	return errors.Join(err, s.answer)
}

func TestWrite(t *testing.T) {
	resource := schema.GroupResource{Group: "qtls.dev", Resource: "qtlsgateways"}
	before := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", ResourceVersion: "41"}}
	after := before.DeepCopy()
	after.Status.Pods = "2/2"
	for name, c := range map[string]struct {
		answer  error
		written bool
		says    string
	}{
		"the object is as it was read": {written: true},
		"it has changed since":         {answer: apierrors.NewConflict(resource, "web", errors.New("changed"))},
		"it is gone":                   {answer: apierrors.NewNotFound(resource, "web")},
		"the server refuses":           {answer: apierrors.NewForbidden(resource, "web", errors.New("no")), says: "shop/web"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{answer: c.answer}
			written, err := Write(t.Context(), s, before, after)
			if written != c.written || (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("written %v, error %v", written, err)
			}
			if want := `{"metadata":{"resourceVersion":"41"},"status":{"pods":"2/2"}}`; s.patch != want {
				t.Errorf("patch %s, want %s: the version it was read at keeps it from undoing a newer status", s.patch, want)
			}
		})
	}
}
