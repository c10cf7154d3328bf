package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type delivery struct {
	object *corev1.ConfigMap
	err    error
}

// followed delivers what a watch of one ConfigMap tells.
func followed(t *testing.T, api *apiServer) (next func() delivery) {
	t.Helper()
	k, err := NewKubernetesObjects(api.config(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	deliveries := make(chan delivery, 16)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.ConfigMap(ctx, "web-dataplane", func(o *corev1.ConfigMap, err error) { deliveries <- delivery{o, err} })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() delivery {
		t.Helper()
		select {
		case d := <-deliveries:
			return d
		case <-time.After(patience):
			t.Fatal("nothing is delivered")
			return delivery{}
		}
	}
}

func testConfigMap(value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-dataplane", UID: "1"}, Data: map[string]string{"k": value}}
}

func TestAnObjectIsFollowed(t *testing.T) {
	api := newAPIServer(t)
	next := followed(t, api)
	if d := next(); d.object != nil || d.err != nil {
		t.Fatalf("an object that is not there: %+v", d)
	}
	for _, value := range []string{"a", "b"} {
		api.put(testConfigMap(value))
		if d := next(); d.object == nil || d.object.Data["k"] != value {
			t.Fatalf("want %q, got %+v", value, d)
		}
	}
	api.delete("configmaps", "web-dataplane")
	if d := next(); d.object != nil || d.err != nil {
		t.Fatalf("an object that is gone: %+v", d)
	}
}

// A Role that comes late is told of, and found soon: at some time, for a busy
// machine may make it late by itself.
func TestARoleThatComesLateIsToldAndRetriedSoon(t *testing.T) {
	var took time.Duration
	for range 10 {
		if took = foundAfter(t); took < time.Second {
			return
		}
	}
	t.Errorf("each time it was tried again after a second or more, at last after %s", took)
}

// foundAfter is how long it takes from when a Role comes.
func foundAfter(t *testing.T) time.Duration {
	t.Helper()
	api := newAPIServer(t)
	api.forbid("configmaps", "web-dataplane", true)
	api.put(testConfigMap("a"))
	next := followed(t, api)
	if d := next(); d.err == nil || !strings.Contains(d.err.Error(), "Role") {
		t.Fatalf("forbidden: %+v", d)
	}
	api.forbid("configmaps", "web-dataplane", false)
	started := time.Now()
	for d := next(); d.object == nil; d = next() {
		if d.err == nil {
			t.Fatal("an object that may not be read counts as absent")
		}
	}
	return time.Since(started)
}

func TestAServerThatGoesAwayIsToldAndFoundAgain(t *testing.T) {
	api := newAPIServer(t)
	api.put(testConfigMap("a"))
	next := followed(t, api)
	if d := next(); d.object == nil {
		t.Fatalf("got %+v", d)
	}
	// The connection that it waits on ends, and no new one is let in.
	api.forbid("configmaps", "web-dataplane", true)
	if d := next(); d.err == nil {
		t.Fatalf("got %+v", d)
	}
	api.put(testConfigMap("b"))
	api.forbid("configmaps", "web-dataplane", false)
	d := next()
	for d.err != nil {
		d = next()
	}
	if d.object == nil || d.object.Data["k"] != "b" {
		t.Errorf("got %+v", d)
	}
}
