package state

import (
	"fmt"
	"reflect"
	"testing"
)

// fill sets every field below v to a value of its own that is not the zero one.
func fill(t *testing.T, v reflect.Value, n *int) {
	*n++
	if v.Type() == reflect.TypeFor[Dialect]() { // there are not so many
		v.Set(reflect.ValueOf(DialectWvanbergen))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(int64(*n))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(uint64(*n))
	case reflect.String:
		v.SetString(fmt.Sprint("s", *n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	default:
		t.Fatalf("a row has a field of kind %s", v.Kind())
	}
}

// Each field of each row comes back from its encoding. (A snapshot that is read back hashes like the state even if both lack it: the hash is
// over the encoding.)
func TestEveryFieldOfARowIsEncoded(t *testing.T) {
	for _, r := range []interface {
		encode(*enc)
		decode(*dec)
	}{new(Znode), new(Broker), new(Topic), new(Partition), new(Config), new(Session), new(Offset), new(Group), new(Legacy), new(Fence), new(meta)} {
		n := 0
		fill(t, reflect.ValueOf(r).Elem(), &n)
		var e enc
		r.encode(&e)
		got := reflect.New(reflect.TypeOf(r).Elem()).Interface().(interface{ decode(*dec) })
		d := dec{b: e.b}
		got.decode(&d)
		if d.err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%T: %v\n%+v\nbecame\n%+v", r, d.err, r, got)
		}
	}
}
