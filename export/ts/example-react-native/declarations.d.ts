// What the example uses of packages that its check does not install. onnxruntime-react-native exports onnxruntime-common as it is.

declare module "onnxruntime-react-native" {
  export * from "onnxruntime-common";
}
declare module "@react-native-async-storage/async-storage" {
  const store: { getItem(name: string): Promise<string | null>; setItem(name: string, text: string): Promise<void> };
  export default store;
}
declare module "expo-secure-store" {
  export function getItemAsync(name: string): Promise<string | null>;
  export function setItemAsync(name: string, text: string): Promise<void>;
}
declare module "react-native-get-random-values" {}
declare module "react" {
  export function useState<T>(first: T): [T, (next: T) => void];
}
declare module "react-native" {
  export function SafeAreaView(given: { children: unknown }): JSX.Element;
  export function Text(given: { children: unknown }): JSX.Element;
  export function Button(given: { title: string; onPress(): void }): JSX.Element;
}
declare module "react/jsx-runtime" {
  export const jsx: unknown;
  export const jsxs: unknown;
}
declare namespace JSX {
  interface Element {}
  interface ElementChildrenAttribute {
    children: unknown;
  }
  interface IntrinsicElements {}
}
