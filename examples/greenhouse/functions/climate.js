// What plants feel is the vapour pressure deficit: how much more water the air could take up.

/** The deficit in kPa (saturation pressure by the Magnus formula with Tetens' coefficients). */
export function vapourPressureDeficit(temperature_c, humidity_pct) {
  const saturation = 0.6108 * Math.exp((17.27 * temperature_c) / (temperature_c + 237.3));
  return saturation * (1 - humidity_pct / 100);
}

/** How plants find it. */
export function comfort(vpd_kpa) {
  if (vpd_kpa < 0.4) return "too humid";
  if (vpd_kpa < 0.8) return "humid";
  if (vpd_kpa <= 1.2) return "comfortable";
  if (vpd_kpa <= 1.6) return "dry";
  return "too dry";
}
