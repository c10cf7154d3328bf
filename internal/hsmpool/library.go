package hsmpool

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

// Library is a vendor's library, and the token that a member is of it.
type Library struct {
	Member string
	// Field of the pool that describes it.
	Field  string
	Module v1alpha1.HSMModule
	Token  v1alpha1.HSMToken
}

// LibraryOf a member; false where it needs none.
func LibraryOf(m v1alpha1.HSMMember) (Library, bool) {
	switch {
	case m.Daemon != nil:
		return Library{m.Name, fmt.Sprintf("spec.members[%s].daemon", m.Name), m.Daemon.Module, m.Daemon.HSMToken}, true
	case m.Module != nil:
		return Library{m.Name, fmt.Sprintf("spec.members[%s].module", m.Name), m.Module.HSMModule, m.Module.HSMToken}, true
	}
	return Library{}, false
}

// InPods are the libraries that the pods of gateways have: those of members of
// the kind module. Two of the same module are one, loaded once; those of others
// have to get along in one process. It is pure. The error is a
// *conditions.Problem.
func InPods(pool *v1alpha1.HSMPool) ([]Library, error) {
	var libraries []Library
	for _, m := range pool.Spec.Members {
		if m.Module == nil {
			continue
		}
		l, _ := LibraryOf(m)
		for _, other := range libraries {
			if equality.Semantic.DeepEqual(l.Module, other.Module) {
				continue
			}
			if what := clash(l.Module, other.Module); what != "" {
				return nil, conditions.Stalled(v1alpha1.ReasonInvalid,
					"HSMPool %q: %s: its %s, and differs from that of member %q: both are in the same container of a gateway's pods; give both members the same module, or run one as a daemon", pool.Name, l.Field, what, other.Member)
			}
		}
		libraries = append(libraries, l)
	}
	return libraries, nil
}

// clash is what two modules cannot both have in one container.
func clash(a, b v1alpha1.HSMModule) string {
	for _, x := range foldersOf(a) {
		for _, y := range foldersOf(b) {
			if x == y || strings.HasPrefix(x, y+"/") || strings.HasPrefix(y, x+"/") {
				return fmt.Sprintf("folder %s overlaps %s", x, y)
			}
		}
	}
	for _, x := range a.Environment {
		for _, y := range b.Environment {
			if x.Name == y.Name && x.Value != y.Value {
				return fmt.Sprintf("variable %s is %q", x.Name, x.Value)
			}
		}
	}
	return ""
}

func foldersOf(m v1alpha1.HSMModule) []string {
	folders := []string{string(m.Folder)}
	for _, f := range m.Files {
		folders = append(folders, string(f.Folder))
	}
	return folders
}
