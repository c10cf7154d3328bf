package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"qtls.dev/qtls/internal/testcert"
)

// apiServer is the part of the Kubernetes API that an agent uses: one object
// at a time, listed and watched by its name.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex
	version int
	objects map[string]metav1.Object // by resource/name
	// forbidden objects answer 403, as before the Role is there.
	forbidden map[string]bool
	changed   chan struct{}
}

const testToken = "the agent's token"

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{objects: map[string]metav1.Object{}, forbidden: map[string]bool{}, changed: make(chan struct{})}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(func() {
		s.CloseClientConnections() // the watches
		s.Close()
	})
	return s
}

func (s *apiServer) config() *rest.Config {
	c := &rest.Config{Host: s.URL, BearerToken: testToken}
	c.CAData = testcert.PEM(s.Certificate())
	return c
}

// put creates or changes an object; delete removes one.
func (s *apiServer) put(o metav1.Object) {
	s.change(func() {
		o.SetResourceVersion(strconv.Itoa(s.version))
		s.objects[key(o)] = o
	})
}

func (s *apiServer) delete(resource, name string) {
	s.change(func() { delete(s.objects, resource+"/"+name) })
}

func (s *apiServer) forbid(resource, name string, forbidden bool) {
	s.change(func() { s.forbidden[resource+"/"+name] = forbidden })
}

func (s *apiServer) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

func key(o metav1.Object) string {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
		return "configmaps/" + o.Name
	case *corev1.Secret:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
		return "secrets/" + o.Name
	}
	panic(fmt.Sprintf("an object of type %T", o))
}

// get is the object, its version, and a channel that is closed by the next
// change of anything.
func (s *apiServer) get(key string) (encoded []byte, version string, forbidden bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[key]; ok {
		var err error
		if encoded, err = json.Marshal(o); err != nil {
			panic(err)
		}
	}
	return encoded, strconv.Itoa(s.version), s.forbidden[key], s.changed
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fail := func(code int, reason metav1.StatusReason) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason)})
	}
	if r.Header.Get("Authorization") != "Bearer "+testToken {
		fail(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		return
	}
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	name, one := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	encoded, version, forbidden, changed := s.get(resource + "/" + name)
	if !one || forbidden || !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/shop/") {
		fail(http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		kind := map[string]string{"configmaps": "ConfigMapList", "secrets": "SecretList"}[resource]
		fmt.Fprintf(w, `{"apiVersion":"v1","kind":%q,"metadata":{"resourceVersion":%q},"items":[%s]}`, kind, version, encoded)
		return
	}
	event := func(kind string, object []byte) {
		fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", kind, object)
		w.(http.Flusher).Flush()
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		if encoded != nil {
			event("ADDED", encoded)
		}
		kind := map[string]string{"configmaps": "ConfigMap", "secrets": "Secret"}[resource]
		event("BOOKMARK", fmt.Appendf(nil, `{"apiVersion":"v1","kind":%q,"metadata":{"resourceVersion":%q,"annotations":{"k8s.io/initial-events-end":"true"}}}`, kind, version))
	} else {
		w.(http.Flusher).Flush()
	}
	for last := encoded; ; {
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
		encoded, _, forbidden, changed = s.get(resource + "/" + name)
		switch {
		case forbidden:
			return
		case string(encoded) == string(last):
			continue
		case encoded == nil:
			event("DELETED", last)
		case last == nil:
			event("ADDED", encoded)
		default:
			event("MODIFIED", encoded)
		}
		last = encoded
	}
}
