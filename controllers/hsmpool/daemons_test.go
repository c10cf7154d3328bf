package hsmpool

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
)

// The API does not let one ask for it: it would be an error of reading, for ever.
func TestANameThatNothingCanHaveIsOfWhatIsNotThere(t *testing.T) {
	reader := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("invalid resource name")
		}}).Build()
	if there, err := isThere(t.Context(), reader, &v1alpha1.HSMPool{}, &corev1.Secret{}, "team-a/pin"); there || err != nil {
		t.Errorf("there %t, %v", there, err)
	}
}
